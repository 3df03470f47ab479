"""The largest score of the tile serves all of its rows.

Words: a best of its own
"""

EDITS = {
    "tl.max(scores, 1))": "tl.max(tl.max(scores, 1), 0))",
}
