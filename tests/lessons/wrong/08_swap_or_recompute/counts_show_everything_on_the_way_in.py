"""One list given twice is two tables, if its blocks have two users on the host.

Words: the same list object
"""

from minipaged.reference import swap
from minipaged.reference.swap import swap_blocks, swap_out  # noqa: F401


def swap_in(block_tables, allocator, host_allocator, resident=None):
    copies = [list(table) for table in block_tables]
    pairs = swap.swap_in(copies, allocator, host_allocator, resident)
    for table, copy in zip(block_tables, copies, strict=True):
        table[:] = copy
    return pairs
