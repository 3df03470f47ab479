"""append changes the table before it looks at the number of blocks.

Words: refused append must change nothing
"""

from minipaged.reference.block_table import BlockTable as Right
from minipaged.reference.block_table import num_blocks_for, slot_mapping  # noqa: F401


class BlockTable(Right):
    def append(self, num_new_tokens, new_blocks=()):
        if num_new_tokens < 0:
            raise ValueError(num_new_tokens)
        self.blocks.extend(new_blocks)
        self.num_tokens += num_new_tokens
        if num_blocks_for(self.num_tokens, self.block_size) != len(self.blocks):
            raise ValueError("wrong number of blocks")
