"""A tile of keys lies in one block.

Words: every key looks up its own block
"""

EDITS = {
    "blocks = tl.load(table_ptr + positions // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)": (
        "blocks = tl.load(table_ptr + start // BLOCK_SIZE + positions * 0, mask=inside, other=0).to(tl.int64)"
    ),
}
