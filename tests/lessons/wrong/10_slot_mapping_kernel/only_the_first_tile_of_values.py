"""K has more tiles, V is written with the first.

Words: loop over range(0, NUM_KV_HEADS * HEAD_DIM, TILE)
"""

EDITS = {
    "tl.store(value_slot, value, mask=inside)": "tl.store(value_slot, value, mask=inside & (start == 0))",
}
