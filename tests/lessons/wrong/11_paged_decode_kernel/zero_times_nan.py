"""A masked score of -inf gives the weight 0, so the values may be loaded unmasked.

Words: 0 x NaN is NaN
"""

EDITS = {
    "values = tl.load(value_ptr + value_at[:, None] + dims[None, :], mask=loaded, other=0.0)": (
        """values = tl.load(
            value_ptr + value_at[:, None] + dims[None, :], mask=dims[None, :] < HEAD_DIM, other=0.0
        )"""
    ),
}
