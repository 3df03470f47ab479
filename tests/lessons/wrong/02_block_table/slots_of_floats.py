"""Slots are computed with /, and a number that happens to be whole is taken for an int.

Words: the value is right, is a float, expected an int
"""

from minipaged.reference.block_table import BlockTable, num_blocks_for  # noqa: F401
from minipaged.reference.block_table import slot_mapping as right


def slot_mapping(block_table, positions, block_size):
    return [slot / 1 for slot in right(block_table, positions, block_size)]
