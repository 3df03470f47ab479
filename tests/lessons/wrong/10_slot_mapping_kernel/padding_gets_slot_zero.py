"""Padding may go to slot 0.

Words: padding got a slot
"""

EDITS = {
    "slots = tl.where(blocks >= 0, blocks * BLOCK_SIZE + positions % BLOCK_SIZE, -1)": (
        "slots = tl.where(blocks >= 0, blocks * BLOCK_SIZE + positions % BLOCK_SIZE, 0)"
    ),
}
