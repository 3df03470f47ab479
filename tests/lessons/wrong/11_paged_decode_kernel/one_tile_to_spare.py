"""A division leaves something over, so a group has one tile more.

Words: 16 heads fill a tile of 16, nothing
"""

EDITS = {
    "head_tiles = tl.cdiv(GROUP, ROW_TILE)": "head_tiles = GROUP // ROW_TILE + 1",
}
