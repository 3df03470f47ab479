"""Blocks are given up from the last to the first, though the cache turns their order round by itself.

Words: the tail is evicted before the head, as they stand in the table
"""

from minipaged.engine.block_manager import BlockManager as Right


class BlockManager(Right):
    def free(self, sequence):
        sequence.table.blocks.reverse()
        super().free(sequence)
