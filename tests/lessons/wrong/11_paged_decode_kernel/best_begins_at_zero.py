"""The largest score is above 0.

Words: best starts at -inf
"""

EDITS = {
    'best = tl.full([queries.shape[0]], float("-inf"), wide)': "best = tl.zeros([queries.shape[0]], wide)",
}
