"""A shared sequence gets new blocks for all of its table at the first write.

Words: entry 1 is repointed, the others stay shared
"""

from minipaged.reference.copy_on_write import copy_blocks, independent_copies  # noqa: F401


def copy_on_write(block_table, index, allocator):
    source = block_table[index]
    users = allocator.reference_count(source)
    if users == 0:
        raise ValueError(source)
    if users == 1:
        return None
    old = list(block_table)
    block_table[:] = allocator.allocate(len(old))
    allocator.free(old)
    return source, block_table[index]
