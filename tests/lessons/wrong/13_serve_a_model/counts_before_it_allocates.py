"""The token is counted first, and then its block is allocated.

Words: whatever can fail comes before
"""

from minipaged.engine.block_manager import BlockManager as Right


class BlockManager(Right):
    def append_slot(self, sequence):
        table = sequence.table
        new = sequence.num_tokens - table.num_tokens
        needed = table.num_blocks_needed(new)
        copied = None
        if new and table.num_empty_slots:
            copied = self.parts.copy_on_write(table.blocks, len(table.blocks) - 1, self.cache)
        table.num_tokens += new
        table.blocks.extend(self.cache.allocate(needed))
        return copied
