"""Sequence ids are always right.

Words: a sequence id that is no row of the table
"""

EDITS = {
    "known = (positions >= 0) & (columns < max_blocks) & (rows >= 0) & (rows < num_sequences)": (
        "known = (positions >= 0) & (columns < max_blocks)"
    ),
}
