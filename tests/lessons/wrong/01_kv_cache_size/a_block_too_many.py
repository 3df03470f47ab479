"""One more block at every exact multiple.

Words: exact multiple
"""

from minipaged.reference.kv_cache_size import blocks_that_fit, bytes_per_token, share_wasted, slots_reserved  # noqa: F401


def slots_paged(lengths, block_size):
    return sum(length // block_size + 1 for length in lengths) * block_size
