"""A fork gets the parent's own table.

Words: the fork's table is the parent's own
"""

from minipaged.engine.block_manager import BlockManager as Right


class BlockManager(Right):
    def fork(self, sequence):
        self.cache.share(sequence.table.blocks)
        return sequence.table
