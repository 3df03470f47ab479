"""Waste is taken as a share of the tokens.

Words: wrong total
"""

from minipaged.reference.kv_cache_size import blocks_that_fit, bytes_per_token, slots_paged, slots_reserved  # noqa: F401


def share_wasted(lengths, num_slots):
    return (num_slots - sum(lengths)) / sum(lengths) if sum(lengths) else 0.0 if not num_slots else 1.0
