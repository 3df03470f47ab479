"""The elements of a head lie side by side: in key_cache too.

Words: from one dim of key_cache to the next it is key_cache_dim_stride
"""

EDITS = {
    "dim * key_cache_dim_stride": "dim",
}
