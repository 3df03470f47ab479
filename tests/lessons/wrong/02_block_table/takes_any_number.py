"""append takes whatever blocks it is given.

Words: refuse
"""

from minipaged.reference.block_table import BlockTable as Right
from minipaged.reference.block_table import num_blocks_for, slot_mapping  # noqa: F401


class BlockTable(Right):
    def append(self, num_new_tokens, new_blocks=()):
        self.blocks.extend(new_blocks)
        self.num_tokens += num_new_tokens
