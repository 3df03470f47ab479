"""A block size is a power of two.

Words: position % BLOCK_SIZE, looked up in the wrong place
"""

EDITS = {
    "offsets = (positions % BLOCK_SIZE).to(tl.int64)": (
        "offsets = (positions & (BLOCK_SIZE - 1)).to(tl.int64)"
    ),
}
