"""The pair is returned as (destination, source).

Words: (source, destination)
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
    block_table[index] = destination
    allocator.free([source])
    return destination, source
