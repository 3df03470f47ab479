"""Padding is looked up like any token: -1 // 16 is some column.

Words: padding got a slot, a position below 0 is no position
"""

EDITS = {
    "known = (positions >= 0) & (columns < max_blocks) & (rows >= 0) & (rows < num_sequences)": (
        "known = inside & (columns < max_blocks) & (rows >= 0) & (rows < num_sequences)"
    ),
}
