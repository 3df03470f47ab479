"""Block ids are 32 bits wide, so their product with the block size is.

Words: make blocks 64-bit before you multiply
"""

EDITS = {
    "positions = tl.load(position_ptr + tokens, mask=inside, other=-1).to(tl.int64)": (
        "positions = tl.load(position_ptr + tokens, mask=inside, other=-1).to(tl.int32)"
    ),
    "blocks = tl.load(entries, mask=known, other=-1).to(tl.int64)": (
        "blocks = tl.load(entries, mask=known, other=-1)"
    ),
}
