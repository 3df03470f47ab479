"""swap_in hands its pairs over in the order of their ids.

Words: order of first appearance
"""

from minipaged.reference import swap
from minipaged.reference.swap import swap_blocks, swap_out  # noqa: F401


def swap_in(block_tables, allocator, host_allocator, resident=None):
    return sorted(swap.swap_in(block_tables, allocator, host_allocator, resident))
