"""The answer is in bits.

Words: in bits
"""

from minipaged.reference.kv_cache_size import blocks_that_fit, share_wasted, slots_paged, slots_reserved  # noqa: F401


def bytes_per_token(num_layers, num_kv_heads, head_dim, bytes_per_value):
    return 8 * 2 * num_layers * num_kv_heads * head_dim * bytes_per_value
