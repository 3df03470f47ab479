"""The scores are not scaled.

Words: scale was forgotten
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
    group_size = len(query) // len(key_cache[block_table[0]][0])
    outputs = []
    for head, vector in enumerate(query):
        kv_head = head // group_size
        partial = Partial(-inf, 0.0, [0.0] * len(vector))
        for keys, values in visible_blocks(key_cache, value_cache, block_table, 0, context_length):
            scores = [_dot(vector, key[kv_head]) for key in keys]
            partial = fold_block(partial, scores, [value[kv_head] for value in values])
        outputs.append([x / partial.total for x in partial.weighted])
    return outputs
