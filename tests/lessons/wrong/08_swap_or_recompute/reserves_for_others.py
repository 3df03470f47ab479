"""What is resident for other groups' host blocks is kept for them.

Words: none of these tables
"""

from minipaged.reference.allocator import OutOfBlocksError
from minipaged.reference.swap import _count_users, swap_blocks  # noqa: F401


def _move(block_tables, source, destination, resident):
    users = _count_users(block_tables, source)
    found = {block: resident[block] for block in users if block in resident}
    absent = [block for block in users if block not in found]
    reused = set(resident.values())
    lost = sum(destination.reference_count(b) == 0 and destination.can_reuse(b) for b in reused)
    if len(absent) > destination.num_available - lost:
        raise OutOfBlocksError(len(absent), destination.num_available - lost)
    taken = [found[block] for block in found for _ in range(users[block])]
    destination.share(taken)
    try:
        moved = dict(zip(absent, destination.allocate(len(absent)), strict=True))
    except BaseException:
        destination.free(taken)
        raise
    destination.share([moved[block] for block in moved for _ in range(users[block] - 1)])
    new = found | moved
    for table in block_tables:
        source.free(table)
        table[:] = [new[block] for block in table]
    return list(moved.items())


def swap_out(block_tables, allocator, host_allocator):
    return _move(block_tables, allocator, host_allocator, {})


def swap_in(block_tables, allocator, host_allocator, resident=None):
    return _move(block_tables, host_allocator, allocator, resident or {})
