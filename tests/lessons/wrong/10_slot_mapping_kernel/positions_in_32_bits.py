"""A position fits in 32 bits, so it may be cut to them.

Words: 2^32 and more, cut to 32 bits
"""

EDITS = {
    "positions = tl.load(position_ptr + tokens, mask=inside, other=-1).to(tl.int64)": (
        "positions = tl.load(position_ptr + tokens, mask=inside, other=-1).to(tl.int32)"
    ),
}
