"""A token has as many elements as the tile.

Words: without a mask the last lane
"""

EDITS = {
    "        inside = elements < NUM_KV_HEADS * HEAD_DIM": "",
    """key = tl.load(key_ptr + head * key_head_stride + dim * key_dim_stride, mask=inside)
        value = tl.load(value_ptr + head * value_head_stride + dim * value_dim_stride, mask=inside)""": (
        """key = tl.load(key_ptr + head * key_head_stride + dim * key_dim_stride)
        value = tl.load(value_ptr + head * value_head_stride + dim * value_dim_stride)"""
    ),
    """tl.store(key_slot, key, mask=inside)
        tl.store(value_slot, value, mask=inside)""": """tl.store(key_slot, key)
        tl.store(value_slot, value)""",
}
