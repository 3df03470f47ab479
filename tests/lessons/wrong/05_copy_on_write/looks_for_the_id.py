"""The entry is found again by the block's id.

Words: don't look for the block's id in the table
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
    block_table[block_table.index(source)] = new
    allocator.free([source])
    return source, new
