"""`if block` tells an entry from none.

Words: block 0 is a block like any other
"""

from minipaged.reference import attention
from minipaged.reference.attention import Partial, decode_attention, fold_block, merge_partials  # noqa: F401


def visible_blocks(key_cache, value_cache, block_table, first, end):
    parts = attention.visible_blocks(key_cache, value_cache, block_table, first, end)
    size = len(key_cache[0])
    for index, part in enumerate(parts, first // size):
        if block_table[index]:
            yield part
