"""The pair is returned, and the table still names the old block.

Words: not repointed
"""

from minipaged.reference.copy_on_write import copy_blocks, independent_copies  # noqa: F401


def copy_on_write(block_table, index, allocator):
    source = block_table[index]
    users = allocator.reference_count(source)
    if users == 0:
        raise ValueError(source)
    if users == 1:
        return None
    (destination,) = allocator.allocate(1)
    allocator.free([source])
    return source, destination
