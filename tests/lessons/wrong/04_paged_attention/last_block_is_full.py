"""All slots of every block are handed out, the last block's too.

Words: last block is treated as full, never written
"""

from minipaged.reference.attention import Partial, decode_attention, fold_block, merge_partials  # noqa: F401


def visible_blocks(key_cache, value_cache, block_table, first, end):
    block_size = len(key_cache[block_table[0]])
    for index in range(first // block_size, -(-end // block_size)):
        start = max(first - index * block_size, 0)
        block = block_table[index]
        yield key_cache[block][start:], value_cache[block][start:]
