"""Each table is moved by itself: shared blocks are duplicated.

Words: it moves once
"""

from minipaged.reference.swap import swap_blocks  # noqa: F401


def swap_out(block_tables, allocator, host_allocator):
    pairs = []
    for table in block_tables:
        new = host_allocator.allocate(len(table))
        pairs += zip(table, new, strict=True)
        allocator.free(table)
        table[:] = new
    return pairs


def swap_in(block_tables, allocator, host_allocator, resident=None):
    return swap_out(block_tables, host_allocator, allocator)
