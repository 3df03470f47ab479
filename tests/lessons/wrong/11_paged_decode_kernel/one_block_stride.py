"""Blocks follow each other in memory.

Words: in the wrong place: block id (64-bit) * block_stride
"""

EDITS = {
    "key_at = blocks * key_block_stride": "key_at = blocks * BLOCK_SIZE * key_slot_stride",
}
