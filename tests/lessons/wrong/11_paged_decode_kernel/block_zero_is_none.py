"""Block 0 is no block, so it is not loaded.

Words: block 0 is a block like any other
"""

EDITS = {
    """loaded = inside[:, None] & (dims < HEAD_DIM)[None, :]
        key_at""": """loaded = (inside & (blocks > 0))[:, None] & (dims < HEAD_DIM)[None, :]
        key_at""",
}
