"""Shared is what two or three tables name.

Words: any number above 1
"""

from minipaged.reference.copy_on_write import _check_copies, copy_blocks, independent_copies  # noqa: F401


def copy_on_write(block_table, index, allocator):
    source = block_table[index]
    users = allocator.reference_count(source)
    if users == 0:
        raise ValueError(f"block {source} is not in use")
    if users not in (2, 3):
        return None
    (new,) = allocator.allocate(1)
    block_table[index] = new
    allocator.free([source])
    return source, new
