"""The last block is treated as full.

Words: not always full
"""

from minipaged.reference.block_table import BlockTable as Right
from minipaged.reference.block_table import num_blocks_for, slot_mapping  # noqa: F401


class BlockTable(Right):
    @property
    def last_block_length(self):
        return self.block_size if self.blocks else 0
