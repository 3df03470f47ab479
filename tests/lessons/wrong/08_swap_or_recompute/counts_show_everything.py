"""A group is fine where its counts allow it, be it one list given twice.

Words: the same list object
"""

from minipaged.reference import swap
from minipaged.reference.swap import swap_blocks, swap_in  # noqa: F401


def swap_out(block_tables, allocator, host_allocator):
    copies = [list(table) for table in block_tables]
    pairs = swap.swap_out(copies, allocator, host_allocator)
    for table, copy in zip(block_tables, copies, strict=True):
        table[:] = copy
    return pairs
