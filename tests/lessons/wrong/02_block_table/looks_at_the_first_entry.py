"""Only the first position's entry is looked at for padding.

Words: entry of each position, not only of the first
"""

from minipaged.reference.block_table import BlockTable, check_block_size, num_blocks_for  # noqa: F401


def slot_mapping(block_table, positions, block_size):
    check_block_size(block_size)
    slots = []
    for position in positions:
        index, offset = divmod(position, block_size)
        if not 0 <= index < len(block_table):
            raise IndexError(position)
        if not slots and block_table[index] < 0:
            raise ValueError("padding")
        slots.append(block_table[index] * block_size + offset)
    return slots
