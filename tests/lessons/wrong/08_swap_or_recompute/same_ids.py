"""A block keeps its number in the other pool.

Words: a device id means nothing there
"""

from minipaged.reference.swap import _count_users, swap_blocks  # noqa: F401


def swap_out(block_tables, allocator, host_allocator):
    users = _count_users(block_tables, allocator)
    host_allocator.allocate(len(users))
    for table in block_tables:
        allocator.free(table)
    return [(block, block) for block in users]


def swap_in(block_tables, allocator, host_allocator, resident=None):
    return swap_out(block_tables, host_allocator, allocator)
