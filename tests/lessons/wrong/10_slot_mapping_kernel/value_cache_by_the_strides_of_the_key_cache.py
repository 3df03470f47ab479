"""The cache of V lies in memory as that of K does.

Words: key_cache alone is a view, serve no other tensor
"""

EDITS = {
    "offset * value_cache_slot_stride": "offset * key_cache_slot_stride",
    "block * value_cache_block_stride": "block * key_cache_block_stride",
}
