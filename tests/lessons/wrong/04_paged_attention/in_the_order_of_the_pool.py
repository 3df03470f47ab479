"""The blocks are read as they lie in the pool, since a sum has no order.

Words: the right blocks in the wrong order
"""

from minipaged.reference import attention
from minipaged.reference.attention import Partial, decode_attention, fold_block, merge_partials  # noqa: F401


def visible_blocks(key_cache, value_cache, block_table, first, end):
    parts = list(attention.visible_blocks(key_cache, value_cache, block_table, first, end))
    start = first // len(key_cache[0])
    order = sorted(range(len(parts)), key=lambda i: block_table[start + i])
    return [parts[i] for i in order]
