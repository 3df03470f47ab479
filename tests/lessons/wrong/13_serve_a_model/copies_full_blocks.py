"""Whoever appends to a table whose last block is shared copies that block, even if it is full.

Words: only a block with an empty slot is written to
"""

from minipaged.engine.block_manager import BlockManager as Right


class BlockManager(Right):
    def append_slot(self, sequence):
        table = sequence.table
        new = sequence.num_tokens - table.num_tokens
        copied = None
        if new and table.blocks:
            copied = self.parts.copy_on_write(table.blocks, len(table.blocks) - 1, self.cache)
        table.append(new, self.cache.allocate(table.num_blocks_needed(new)))
        return copied
