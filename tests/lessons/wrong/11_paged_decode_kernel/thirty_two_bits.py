"""A block id fits in 32 bits, so its offset does.

Words: make blocks 64-bit first
"""

EDITS = {
    """blocks = tl.load(table_ptr + positions // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
        offsets = (positions % BLOCK_SIZE).to(tl.int64)""": (
        """blocks = tl.load(table_ptr + positions // BLOCK_SIZE, mask=inside, other=0)
        offsets = positions % BLOCK_SIZE"""
    ),
}
