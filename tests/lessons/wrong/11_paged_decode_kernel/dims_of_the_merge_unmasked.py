"""A split has as many elements as lanes.

Words: only HEAD_DIM of the DIM_TILE lanes
"""

EDITS = {
    """loaded = inside[:, None] & (dims < HEAD_DIM)[None, :]
        partial""": """loaded = inside[:, None] & (dims >= 0)[None, :]
        partial""",
}
