"""A split begins where a tile does.

Words: another program's, splits of 24 keys
"""

EDITS = {
    "inside = (positions >= first) & (positions < last)": "inside = positions < last",
}
