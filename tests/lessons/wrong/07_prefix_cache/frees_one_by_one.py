"""Blocks are given up one after the other, from the last on.

Words: free all in one call
"""

EDITS = {
    "unused = self.allocator.free(blocks)": (
        "unused = [block for each in reversed(blocks) for block in self.allocator.free([each])]"
    ),
}
