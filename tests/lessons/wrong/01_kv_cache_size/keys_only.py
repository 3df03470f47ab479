"""Only the keys are counted.

Words: half of it is missing
"""

from minipaged.reference.kv_cache_size import blocks_that_fit, share_wasted, slots_paged, slots_reserved  # noqa: F401


def bytes_per_token(num_layers, num_kv_heads, head_dim, bytes_per_value):
    return num_layers * num_kv_heads * head_dim * bytes_per_value
