"""The old block keeps the count of its writer.

Words: count of the old block was not lowered
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
    return source, destination
