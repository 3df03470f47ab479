"""A head fits in 32 bits, so its offset does.

Words: head * head_stride has overflowed
"""

EDITS = {
    "head = (elements // HEAD_DIM).to(tl.int64)": "head = elements // HEAD_DIM",
}
