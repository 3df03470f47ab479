"""Heads and slots lie side by side.

Words: these tensors are views
"""

EDITS = {
    "key_slot = key_cache_ptr + head * key_cache_head_stride + dim * key_cache_dim_stride": (
        "key_slot = key_cache_ptr + head * HEAD_DIM + dim"
    ),
}
