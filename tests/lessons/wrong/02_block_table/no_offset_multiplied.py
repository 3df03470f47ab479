"""A block is thought to begin at the slot of its own number.

Words: block begins at slot block * block_size
"""

from minipaged.reference.block_table import BlockTable, num_blocks_for  # noqa: F401


def slot_mapping(block_table, positions, block_size):
    return [block_table[position // block_size] + position % block_size for position in positions]
