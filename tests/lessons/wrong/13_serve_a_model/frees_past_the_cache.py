"""The allocator gets the blocks, and the cache isn't told.

Words: doesn't tell the cache
"""

from minipaged.engine.block_manager import BlockManager as Right


class BlockManager(Right):
    def free(self, sequence):
        if sequence.on_host:
            super().free(sequence)
            return
        blocks = sequence.table.blocks
        sequence.table = self.new_table()
        sequence.num_computed_tokens = 0
        self.allocator.free(blocks)
