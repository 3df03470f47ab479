"""The sequence is taken to lie in blocks 0, 1, 2 of the pool.

Words: block table was not asked
"""

from minipaged.reference.attention import Partial, decode_attention, fold_block, merge_partials  # noqa: F401


def visible_blocks(key_cache, value_cache, block_table, first, end):
    block_size = len(key_cache[0])
    for index in range(first // block_size, -(-end // block_size)):
        start = max(first - index * block_size, 0)
        stop = min(end - index * block_size, block_size)
        yield key_cache[index][start:stop], value_cache[index][start:stop]
