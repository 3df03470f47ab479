"""range ends before its last number, so it is told one less.

Words: the last turn has one element left
"""

EDITS = {
    "range(0, NUM_KV_HEADS * HEAD_DIM, TILE)": "range(0, NUM_KV_HEADS * HEAD_DIM - 1, TILE)",
}
