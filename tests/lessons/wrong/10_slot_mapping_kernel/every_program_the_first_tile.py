"""tl.arange counts through all tokens of the launch.

Words: add tl.program_id(0) * TILE
"""

EDITS = {
    "tokens = tl.program_id(0) * TILE + tl.arange(0, TILE)": "tokens = tl.arange(0, TILE)",
}
