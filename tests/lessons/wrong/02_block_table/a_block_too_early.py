"""A block is taken as soon as the last one is full.

Words: too early, fill their blocks
"""

from minipaged.reference.block_table import BlockTable, slot_mapping  # noqa: F401


def num_blocks_for(num_tokens, block_size):
    return num_tokens // block_size + 1 if num_tokens else 0
