"""A block is taken first, and given back where it is not needed.

Words: ask for the count first
"""

from minipaged.reference.copy_on_write import copy_blocks, independent_copies  # noqa: F401


def copy_on_write(block_table, index, allocator):
    (destination,) = allocator.allocate(1)
    source = block_table[index]
    if allocator.reference_count(source) <= 1:
        allocator.free([destination])
        return None
    block_table[index] = destination
    allocator.free([source])
    return source, destination
