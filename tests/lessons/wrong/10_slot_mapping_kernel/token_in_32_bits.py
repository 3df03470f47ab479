"""A token fits in 32 bits, so its offset does.

Words: token * token_stride has overflowed
"""

EDITS = {
    "token = tl.program_id(0).to(tl.int64)": "token = tl.program_id(0)",
}
