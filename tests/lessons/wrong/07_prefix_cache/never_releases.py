"""A block that is findable no more is free.

Words: allocator.release was called
"""

EDITS = {
    "        self.allocator.release(block)\n": "",
}
