"""A row fits in 32 bits, so the place of its entries does.

Words: row * table_row_stride has overflowed
"""

EDITS = {
    "rows * table_row_stride": "rows.to(tl.int32) * table_row_stride",
}
