"""A group fits in a tile.

Words: a group of more heads than ROW_TILE
"""

EDITS = {
    """head_tiles = tl.cdiv(GROUP, ROW_TILE)
    kv_head = (program // head_tiles).to(tl.int64)
    members = program % head_tiles * ROW_TILE + tl.arange(0, ROW_TILE)""": """kv_head = program.to(tl.int64)
    members = tl.arange(0, ROW_TILE)""",
}
