"""One maximum is reserved, for all requests together.

Words: one maximum for each request
"""

from minipaged.reference.kv_cache_size import blocks_that_fit, bytes_per_token, share_wasted, slots_paged  # noqa: F401


def slots_reserved(lengths, max_length):
    if lengths and max(lengths) > max_length:
        raise ValueError(max(lengths))
    return max_length if lengths else 0
