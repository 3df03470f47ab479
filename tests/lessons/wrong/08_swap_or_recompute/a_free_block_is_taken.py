"""A resident block that is free is taken off the free stack, if it lies on top.

Words: the next to be handed out
"""

from minipaged.reference import swap
from minipaged.reference.swap import swap_blocks, swap_out  # noqa: F401


def swap_in(block_tables, allocator, host_allocator, resident=None):
    top = getattr(allocator, "free_order", list)()[:1]
    if top and top[0] in (resident or {}).values():
        allocator.allocate(1)
        pairs = swap.swap_in(block_tables, allocator, host_allocator, resident)
        allocator.free(top)
        return pairs
    return swap.swap_in(block_tables, allocator, host_allocator, resident)
