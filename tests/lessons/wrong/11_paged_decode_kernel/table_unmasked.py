"""Every key of a tile has an entry in the table.

Words: mask the load of the table, block_tables
"""

EDITS = {
    "blocks = tl.load(table_ptr + positions // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)": (
        "blocks = tl.load(table_ptr + positions // BLOCK_SIZE).to(tl.int64)"
    ),
}
