"""Block 0 is taken for no block.

Words: block 0 is a block
"""

from minipaged.reference.block_table import BlockTable, num_blocks_for  # noqa: F401
from minipaged.reference.block_table import slot_mapping as right


def slot_mapping(block_table, positions, block_size):
    positions = list(positions)
    slots = right(block_table, positions, block_size)
    for position in positions:
        if block_table[position // block_size] <= 0:
            raise ValueError("padding")
    return slots
