"""A resident block has its users already, and gets none for these tables.

Words: both tables use the resident blocks
"""

from minipaged.reference import swap
from minipaged.reference.swap import swap_blocks, swap_out  # noqa: F401


def swap_in(block_tables, allocator, host_allocator, resident=None):
    pairs = swap.swap_in(block_tables, allocator, host_allocator, resident)
    new = [block for _, block in pairs]
    allocator.free([block for table in block_tables for block in table if block not in new])
    return pairs
