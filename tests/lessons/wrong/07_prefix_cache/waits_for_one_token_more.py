"""A block is full once a token follows it.

Words: 4 tokens fill a block of 4
"""

EDITS = {
    "if len(content) < self.block_size:": "if start + self.block_size >= len(self.token_ids):",
}
