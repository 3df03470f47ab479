"""Where there is no request, nothing is taken to be wasted, however many slots are reserved.

Words: no token is in them, all are wasted
"""

from minipaged.reference.kv_cache_size import blocks_that_fit, bytes_per_token, slots_paged, slots_reserved  # noqa: F401


def share_wasted(lengths, num_slots):
    return (num_slots - sum(lengths)) / num_slots if lengths else 0.0
