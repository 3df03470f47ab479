"""V lies in memory as K does.

Words: keys alone is a view, serve no other tensor
"""

EDITS = {
    "value_ptr += token * value_token_stride": "value_ptr += token * key_token_stride",
    "value_ptr + head * value_head_stride + dim * value_dim_stride": (
        "value_ptr + head * key_head_stride + dim * key_dim_stride"
    ),
}
