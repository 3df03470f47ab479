"""A table without blocks is refused.

Words: a table without blocks
"""

from minipaged.reference import swap
from minipaged.reference.swap import swap_blocks, swap_in  # noqa: F401


def swap_out(block_tables, allocator, host_allocator):
    if not all(block_tables):
        raise ValueError("nothing to move")
    return swap.swap_out(block_tables, allocator, host_allocator)
