"""The new blocks are taken from the end of the list, so that the last comes first.

Words: in the order they came
"""

from minipaged.reference.block_table import BlockTable as Right
from minipaged.reference.block_table import num_blocks_for, slot_mapping  # noqa: F401


class BlockTable(Right):
    def append(self, num_new_tokens, new_blocks=()):
        new_blocks = list(new_blocks)
        if num_new_tokens < 0 or len(new_blocks) != self.num_blocks_needed(num_new_tokens):
            raise ValueError("wrong number of blocks")
        while new_blocks:
            self.blocks.append(new_blocks.pop())
        self.num_tokens += num_new_tokens
