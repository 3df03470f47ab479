"""The used share is given for the wasted one.

Words: what is wasted is the rest
"""

from minipaged.reference.kv_cache_size import blocks_that_fit, bytes_per_token, slots_paged, slots_reserved  # noqa: F401


def share_wasted(lengths, num_slots):
    return sum(lengths) / num_slots if num_slots else 0.0
