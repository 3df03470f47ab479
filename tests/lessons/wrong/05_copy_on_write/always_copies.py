"""Every write to a block that is in use makes a copy.

Words: one user, nothing is to be copied
"""

from minipaged.reference.copy_on_write import copy_blocks, independent_copies  # noqa: F401


def copy_on_write(block_table, index, allocator):
    source = block_table[index]
    users = allocator.reference_count(source)
    if users == 0:
        raise ValueError(source)
    (destination,) = allocator.allocate(1)
    block_table[index] = destination
    allocator.free([source])
    return source, destination
