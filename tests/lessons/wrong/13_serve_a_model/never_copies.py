"""A table only ever grows: nothing is copied.

Words: block 1 is in two tables, copy_on_write
"""

from minipaged.engine.block_manager import BlockManager as Right


class BlockManager(Right):
    def append_slot(self, sequence):
        table = sequence.table
        new = sequence.num_tokens - table.num_tokens
        table.append(new, self.cache.allocate(table.num_blocks_needed(new)))
        return None
