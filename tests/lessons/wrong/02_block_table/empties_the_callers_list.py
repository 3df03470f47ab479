"""append takes the new blocks out of the caller's list.

Words: only read it
"""

from minipaged.reference.block_table import BlockTable as Right
from minipaged.reference.block_table import num_blocks_for, slot_mapping  # noqa: F401


class BlockTable(Right):
    def append(self, num_new_tokens, new_blocks=()):
        new = new_blocks if isinstance(new_blocks, list) else list(new_blocks)
        if num_new_tokens < 0 or len(new) != self.num_blocks_needed(num_new_tokens):
            raise ValueError("wrong number of blocks")
        while new:
            self.blocks.append(new.pop(0))
        self.num_tokens += num_new_tokens
