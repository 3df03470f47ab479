"""Each row has one set of splits, whatever the head.

Words: (i * num_heads + j) * num_splits + s
"""

EDITS = {
    "at = (row * num_heads + head) * num_splits + splits": "at = row * num_heads * num_splits + splits",
}
