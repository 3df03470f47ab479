"""The last block is read as if it were full.

Words: the last block was read as if it were full
"""

EDITS = {
    "inside = (positions >= first) & (positions < last)": (
        "inside = (positions >= first) & (positions < (last + BLOCK_SIZE - 1) // BLOCK_SIZE * BLOCK_SIZE)"
    ),
    "inside[None, :] & (positions[None, :] <= query_positions[:, None])": "inside[None, :]",
}
