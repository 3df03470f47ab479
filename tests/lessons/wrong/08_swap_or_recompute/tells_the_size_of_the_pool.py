"""The error names all blocks of the host pool, also those that are taken.

Words: it can still hand out
"""

from minipaged.reference import swap
from minipaged.reference.allocator import OutOfBlocksError
from minipaged.reference.swap import swap_blocks, swap_in  # noqa: F401


def swap_out(block_tables, allocator, host_allocator):
    try:
        return swap.swap_out(block_tables, allocator, host_allocator)
    except OutOfBlocksError as error:
        raise OutOfBlocksError(error.requested, host_allocator.num_blocks) from None
