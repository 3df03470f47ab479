"""Python finds an entry for a negative position too.

Words: wrapped
"""

from minipaged.reference.block_table import BlockTable, check_block_size, num_blocks_for  # noqa: F401


def slot_mapping(block_table, positions, block_size):
    check_block_size(block_size)
    slots = []
    for position in positions:
        index, offset = divmod(position, block_size)
        if block_table[index] < 0:
            raise ValueError("padding")
        slots.append(block_table[index] * block_size + offset)
    return slots
