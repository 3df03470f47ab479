"""Only an entry of -1 is refused; others below 0 pass for blocks.

Words: every entry below 0, not only -1
"""

from minipaged.reference.block_table import BlockTable, check_block_size, num_blocks_for  # noqa: F401


def slot_mapping(block_table, positions, block_size):
    check_block_size(block_size)
    slots = []
    for position in positions:
        index, offset = divmod(position, block_size)
        if not 0 <= index < len(block_table):
            raise IndexError(position)
        if block_table[index] == -1:
            raise ValueError("padding")
        slots.append(block_table[index] * block_size + offset)
    return slots
