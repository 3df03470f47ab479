"""Scores are masked afterwards, so keys may be loaded unmasked.

Words: no access outside of the kernel's arrays
"""

EDITS = {
    "blocks = tl.load(table_ptr + positions // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)": (
        "blocks = tl.load(table_ptr + positions // BLOCK_SIZE, mask=positions < 1000, other=0).to(tl.int64)"
    ),
    """loaded = inside[:, None] & (dims < HEAD_DIM)[None, :]
        key_at = blocks * key_block_stride + offsets * key_slot_stride""": (
        "key_at = blocks * key_block_stride + offsets * key_slot_stride"
    ),
    "keys = tl.load(key_ptr + key_at[:, None] + dims[None, :], mask=loaded, other=0.0)": (
        "keys = tl.load(key_ptr + key_at[:, None] + dims[None, :], mask=dims[None, :] < HEAD_DIM, other=0.0)"
    ),
    "values = tl.load(value_ptr + value_at[:, None] + dims[None, :], mask=loaded, other=0.0)": (
        """values = tl.load(
            value_ptr + value_at[:, None] + dims[None, :], mask=dims[None, :] < HEAD_DIM, other=0.0
        )"""
    ),
}
