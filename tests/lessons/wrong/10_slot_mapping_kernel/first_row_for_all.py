"""One table is enough: the sequence ids are not looked at.

Words: looked up in row 0
"""

EDITS = {
    "entries = table_ptr + rows * table_row_stride + columns * table_column_stride": (
        "entries = table_ptr + 0 * table_row_stride + columns * table_column_stride"
    ),
}
