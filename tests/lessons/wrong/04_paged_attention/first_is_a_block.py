"""A part of a context is taken to begin where a block does.

Words: both ends of a block's slice
"""

from minipaged.reference.attention import Partial, decode_attention, fold_block, merge_partials  # noqa: F401


def visible_blocks(key_cache, value_cache, block_table, first, end):
    block_size = len(key_cache[block_table[0]])
    for index in range(first // block_size, -(-end // block_size)):
        stop = min(end - index * block_size, block_size)
        block = block_table[index]
        yield key_cache[block][:stop], value_cache[block][:stop]
