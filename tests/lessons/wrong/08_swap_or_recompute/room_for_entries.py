"""Each entry of a table is taken to need a host block.

Words: not for entries
"""

from minipaged.reference import swap
from minipaged.reference.allocator import OutOfBlocksError
from minipaged.reference.swap import swap_blocks, swap_in  # noqa: F401


def swap_out(block_tables, allocator, host_allocator):
    needed = sum(map(len, block_tables))
    if needed > host_allocator.num_available:
        raise OutOfBlocksError(needed, host_allocator.num_available)
    return swap.swap_out(block_tables, allocator, host_allocator)
