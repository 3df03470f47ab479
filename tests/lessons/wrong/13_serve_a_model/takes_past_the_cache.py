"""New blocks are asked of the allocator, which knows of free blocks and not of cached ones.

Words: self.cache.allocate evicts, 1 block is cached
"""

from minipaged.engine.block_manager import BlockManager as Right


class BlockManager(Right):
    def append_slot(self, sequence):
        table = sequence.table
        new = sequence.num_tokens - table.num_tokens
        copied = None
        if new and table.num_empty_slots:
            copied = self.parts.copy_on_write(table.blocks, len(table.blocks) - 1, self.cache)
        table.append(new, self.allocator.allocate(table.num_blocks_needed(new)))
        return copied
