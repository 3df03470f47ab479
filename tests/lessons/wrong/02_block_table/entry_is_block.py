"""The index of the entry is used for the block.

Words: block table was not asked
"""

from minipaged.reference.block_table import BlockTable, num_blocks_for  # noqa: F401


def slot_mapping(block_table, positions, block_size):
    return [position // block_size * block_size + position % block_size for position in positions]
