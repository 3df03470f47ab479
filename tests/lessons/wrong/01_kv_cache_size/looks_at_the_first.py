"""Only the first request is compared with the maximum.

Words: every request, not only at the first
"""

from minipaged.reference.kv_cache_size import blocks_that_fit, bytes_per_token, share_wasted, slots_paged  # noqa: F401


def slots_reserved(lengths, max_length):
    if lengths and lengths[0] > max_length:
        raise ValueError(lengths[0])
    return len(lengths) * max_length
