"""A sequence's blocks are taken for blocks of the pool, wherever it is.

Words: host_allocator.free
"""

from minipaged.engine.block_manager import BlockManager as Right


class BlockManager(Right):
    def free(self, sequence):
        blocks = sequence.table.blocks
        sequence.table = self.new_table()
        sequence.num_computed_tokens = 0
        self.cache.free(blocks)
