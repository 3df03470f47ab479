"""The last block is taken to hold num_tokens % block_size tokens, 0 at every exact multiple.

Words: exact multiple
"""

from minipaged.reference.block_table import BlockTable as Right
from minipaged.reference.block_table import num_blocks_for, slot_mapping  # noqa: F401


class BlockTable(Right):
    @property
    def last_block_length(self):
        return self.num_tokens % self.block_size
