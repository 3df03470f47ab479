"""A block size is a power of two, so the offset is a mask of bits.

Words: for any BLOCK_SIZE, BLOCK_SIZE 3
"""

EDITS = {
    "slots = tl.where(blocks >= 0, blocks * BLOCK_SIZE + positions % BLOCK_SIZE, -1)": (
        "slots = tl.where(blocks >= 0, blocks * BLOCK_SIZE + (positions & (BLOCK_SIZE - 1)), -1)"
    ),
}
