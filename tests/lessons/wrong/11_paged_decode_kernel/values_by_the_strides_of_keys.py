"""V lies in memory as K does.

Words: are those of value_cache alone
"""

EDITS = {
    "value_at = blocks * value_block_stride + offsets * value_slot_stride": "value_at = key_at",
}
