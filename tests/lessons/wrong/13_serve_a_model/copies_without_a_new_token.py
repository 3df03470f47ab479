"""A shared last block is copied whether or not anything will be written.

Words: nothing will be written, so nothing is copied
"""

from minipaged.engine.block_manager import BlockManager as Right


class BlockManager(Right):
    def append_slot(self, sequence):
        table = sequence.table
        new = sequence.num_tokens - table.num_tokens
        copied = None
        if table.num_empty_slots:
            copied = self.parts.copy_on_write(table.blocks, len(table.blocks) - 1, self.cache)
        table.append(new, self.cache.allocate(table.num_blocks_needed(new)))
        return copied
