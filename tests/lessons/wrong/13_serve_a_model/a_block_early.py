"""A new block is taken when the last slot is filled, instead of when the next token needs one.

Words: no new block
"""

from minipaged.engine.block_manager import BlockManager as Right


class BlockManager(Right):
    def append_slot(self, sequence):
        copied = super().append_slot(sequence)
        table = sequence.table
        if table.num_tokens % self.block_size > 1:
            table.blocks.extend(self.cache.allocate(1))
        return copied
