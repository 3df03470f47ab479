"""A row of the table has max_blocks entries, so the next one begins there.

Words: table_row_stride entries on, a view
"""

EDITS = {
    "entries = table_ptr + rows * table_row_stride + columns * table_column_stride": (
        "entries = table_ptr + rows * max_blocks + columns * table_column_stride"
    ),
}
