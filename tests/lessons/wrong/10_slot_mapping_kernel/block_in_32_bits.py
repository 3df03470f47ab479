"""A block id fits in 32 bits, so its offset does.

Words: overflowed 32 bits
"""

EDITS = {
    "block = slot // BLOCK_SIZE": "block = (slot // BLOCK_SIZE).to(tl.int32)",
}
