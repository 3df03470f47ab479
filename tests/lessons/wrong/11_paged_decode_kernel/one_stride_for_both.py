"""Values lie as keys do, but the slot stride is forgotten.

Words: slot p % BLOCK_SIZE
"""

EDITS = {
    "value_at = blocks * value_block_stride + offsets * value_slot_stride": (
        "value_at = blocks * value_block_stride + offsets * HEAD_DIM"
    ),
}
