"""Nothing is counted beforehand: `allocate` refuses by itself, and what was shared is given up again.

Words: the last to be evicted
"""

from minipaged.reference.swap import _count_users, swap_blocks, swap_out  # noqa: F401


def swap_in(block_tables, allocator, host_allocator, resident=None):
    users = _count_users(block_tables, host_allocator)
    found = {block: resident[block] for block in users if block in (resident or {})}
    absent = [block for block in users if block not in found]
    taken = [found[block] for block in found for _ in range(users[block])]
    allocator.share(taken)
    try:
        moved = dict(zip(absent, allocator.allocate(len(absent)), strict=True))
    except BaseException:
        allocator.free(taken)
        raise
    allocator.share([moved[block] for block in moved for _ in range(users[block] - 1)])
    new = found | moved
    for table in block_tables:
        host_allocator.free(table)
        table[:] = [new[block] for block in table]
    return list(moved.items())
