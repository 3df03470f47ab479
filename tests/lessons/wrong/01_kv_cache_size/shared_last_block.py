"""All requests are put side by side, as if they shared their last blocks.

Words: for each request
"""

from minipaged.reference.kv_cache_size import blocks_that_fit, bytes_per_token, share_wasted, slots_reserved  # noqa: F401


def slots_paged(lengths, block_size):
    return -(-sum(lengths) // block_size) * block_size
