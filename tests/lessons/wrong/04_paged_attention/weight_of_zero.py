"""Slots past the context are masked by a score of -inf, and read all the same.

Words: 0 x nan, never written, must not be read
"""

from math import inf

from minipaged.reference.attention import (  # noqa: F401
    Partial,
    _dot,
    fold_block,
    merge_partials,
    visible_blocks,
)


def decode_attention(query, key_cache, value_cache, block_table, context_length, *, scale):
    if context_length <= 0:
        return [[0.0] * len(vector) for vector in query]
    block_size = len(key_cache[block_table[0]])
    group_size = len(query) // len(key_cache[block_table[0]][0])
    outputs = []
    for head, vector in enumerate(query):
        kv_head = head // group_size
        partial = Partial(-inf, 0.0, [0.0] * len(vector))
        for start in range(0, context_length, block_size):
            block = block_table[start // block_size]
            scores = [_dot(vector, key[kv_head]) * scale for key in key_cache[block]]
            scores = [s if start + i < context_length else -inf for i, s in enumerate(scores)]
            partial = fold_block(partial, scores, [value[kv_head] for value in value_cache[block]])
        outputs.append([x / partial.total for x in partial.weighted])
    return outputs
