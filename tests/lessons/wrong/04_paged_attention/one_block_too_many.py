"""Where the context fills its blocks exactly, a further one is looked for.

Words: (end - 1) // block_size
"""

from minipaged.reference.attention import Partial, decode_attention, fold_block, merge_partials  # noqa: F401


def visible_blocks(key_cache, value_cache, block_table, first, end):
    block_size = len(key_cache[block_table[0]])
    for index in range(first // block_size, end // block_size + 1):
        start = max(first - index * block_size, 0)
        stop = min(end - index * block_size, block_size)
        block = block_table[index]
        yield key_cache[block][start:stop], value_cache[block][start:stop]
