"""The last block ends at end % block_size, which is 0 where it is full.

Words: a block came out empty that has visible slots
"""

from minipaged.reference.attention import Partial, decode_attention, fold_block, merge_partials  # noqa: F401


def visible_blocks(key_cache, value_cache, block_table, first, end):
    size = len(key_cache[0])
    last = (end - 1) // size
    for index in range(first // size, last + 1):
        start = max(first - index * size, 0)
        stop = end % size if index == last else size
        yield key_cache[block_table[index]][start:stop], value_cache[block_table[index]][start:stop]
