"""A resident block that was freed meanwhile is passed over, and copied.

Words: resident={0: 2}, same promises
"""

from minipaged.reference import swap
from minipaged.reference.swap import swap_blocks, swap_out  # noqa: F401


def swap_in(block_tables, allocator, host_allocator, resident=None):
    free = getattr(allocator, "free_order", list)()
    usable = {host_block: block for host_block, block in (resident or {}).items() if block not in free}
    return swap.swap_in(block_tables, allocator, host_allocator, usable)
