"""Blocks are moved one at a time until the pool is full.

Words: all or nothing
"""

from minipaged.reference.allocator import OutOfBlocksError
from minipaged.reference.swap import _count_users, swap_blocks  # noqa: F401


def swap_out(block_tables, allocator, host_allocator):
    users = _count_users(block_tables, allocator)
    new = {}
    for block in users:
        try:
            (new[block],) = host_allocator.allocate(1)
        except OutOfBlocksError:
            raise OutOfBlocksError(len(users), len(new)) from None
        host_allocator.share([new[block]] * (users[block] - 1))
    for table in block_tables:
        allocator.free(table)
        table[:] = [new[block] for block in table]
    return list(new.items())


def swap_in(block_tables, allocator, host_allocator, resident=None):
    return swap_out(block_tables, host_allocator, allocator)
