"""Entry and offset are swapped.

Words: slot = block * block_size + offset
"""

from minipaged.reference.block_table import BlockTable, num_blocks_for  # noqa: F401


def slot_mapping(block_table, positions, block_size):
    slots = []
    for position in positions:
        offset, entry = divmod(position, block_size)
        slots.append(block_table[entry % len(block_table)] * block_size + offset)
    return slots
