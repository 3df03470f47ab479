"""The entry is set to -1 until its new block is there.

Words: the entry was set before `allocate` had answered
"""

from minipaged.reference.copy_on_write import _check_copies, copy_blocks, independent_copies  # noqa: F401


def copy_on_write(block_table, index, allocator):
    source = block_table[index]
    users = allocator.reference_count(source)
    if users == 0:
        raise ValueError(f"block {source} is not in use")
    if users == 1:
        return None
    block_table[index] = -1
    (block_table[index],) = allocator.allocate(1)
    allocator.free([source])
    return source, block_table[index]
