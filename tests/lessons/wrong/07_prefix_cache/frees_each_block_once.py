"""A block is given up once, however often it is named.

Words: named twice
"""

EDITS = {
    "unused = self.allocator.free(blocks)": "unused = self.allocator.free(list(dict.fromkeys(blocks)))",
}
