"""slot answers for an empty slot of the last block, where no token is.

Words: no token is there
"""

from minipaged.reference.block_table import BlockTable as Right
from minipaged.reference.block_table import num_blocks_for, slot_mapping  # noqa: F401


class BlockTable(Right):
    def slot(self, position):
        return slot_mapping(self.blocks, [position], self.block_size)[0]
