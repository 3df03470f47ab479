"""A position is never beyond its table.

Words: beyond the max_blocks of its row
"""

EDITS = {
    "known = (positions >= 0) & (columns < max_blocks) & (rows >= 0) & (rows < num_sequences)": (
        "known = (positions >= 0) & (rows >= 0) & (rows < num_sequences)"
    ),
}
