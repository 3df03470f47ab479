"""An entry below 0 is a block like any other.

Words: an entry below 0 is no block
"""

EDITS = {
    "slots = tl.where(blocks >= 0, blocks * BLOCK_SIZE + positions % BLOCK_SIZE, -1)": (
        "slots = tl.where(known, blocks * BLOCK_SIZE + positions % BLOCK_SIZE, -1)"
    ),
}
