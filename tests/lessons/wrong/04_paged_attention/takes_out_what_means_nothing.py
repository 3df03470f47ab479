"""Entries below 0 are padding, so they are taken out of the table first, wherever they stand.

Words: entry j is block j of the sequence, they would all move up
"""

from minipaged.reference import attention
from minipaged.reference.attention import Partial, decode_attention, fold_block, merge_partials  # noqa: F401


def visible_blocks(key_cache, value_cache, block_table, first, end):
    named = [block for block in block_table if block >= 0]
    return attention.visible_blocks(key_cache, value_cache, named, first, end)
