"""The entries of a row lie side by side.

Words: table_column_stride apart
"""

EDITS = {
    "entries = table_ptr + rows * table_row_stride + columns * table_column_stride": (
        "entries = table_ptr + rows * table_row_stride + columns"
    ),
}
