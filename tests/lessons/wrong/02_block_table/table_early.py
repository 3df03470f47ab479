"""The table asks for a block when its last one has become full.

Words: too early
"""

from minipaged.reference.block_table import BlockTable as Right
from minipaged.reference.block_table import num_blocks_for, slot_mapping  # noqa: F401


class BlockTable(Right):
    def num_blocks_needed(self, num_new_tokens):
        return (self.num_tokens + num_new_tokens) // self.block_size + 1 - len(self.blocks)

    def append(self, num_new_tokens, new_blocks=()):
        self.blocks.extend(new_blocks)
        self.num_tokens += num_new_tokens
