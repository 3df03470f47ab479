"""Program i begins at token i.

Words: program i has the tokens
"""

EDITS = {
    "tokens = tl.program_id(0) * TILE + tl.arange(0, TILE)": "tokens = tl.program_id(0) + tl.arange(0, TILE)",
}
