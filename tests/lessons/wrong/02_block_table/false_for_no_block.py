"""`and` is thought to give a number: for no token it gives False.

Words: the value is right, is a bool, expected an int
"""

from minipaged.reference.block_table import BlockTable, slot_mapping  # noqa: F401


def num_blocks_for(num_tokens, block_size):
    return num_tokens > 0 and -(-num_tokens // block_size)
