"""The elements of a head lie side by side: in value_cache too.

Words: from one dim of value_cache to the next it is value_cache_dim_stride
"""

EDITS = {
    "dim * value_cache_dim_stride": "dim",
}
