"""A sequence id fits in 32 bits, so it may be cut to them.

Words: 2^32 and more, cut to 32 bits
"""

EDITS = {
    "rows = tl.load(sequence_ptr + tokens, mask=inside, other=-1).to(tl.int64)": (
        "rows = tl.load(sequence_ptr + tokens, mask=inside, other=-1).to(tl.int32)"
    ),
}
