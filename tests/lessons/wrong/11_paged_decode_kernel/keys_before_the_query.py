"""A query sees the keys before its own.

Words: total is 0, up to its own position
"""

EDITS = {
    "(positions[None, :] <= query_positions": "(positions[None, :] < query_positions",
}
