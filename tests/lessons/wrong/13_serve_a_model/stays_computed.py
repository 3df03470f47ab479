"""A sequence that has lost its blocks still counts as computed.

Words: all to be computed again
"""

from minipaged.engine.block_manager import BlockManager as Right


class BlockManager(Right):
    def free(self, sequence):
        blocks = sequence.table.blocks
        sequence.table = self.new_table()
        if not sequence.on_host:
            self.cache.free(blocks)
        else:
            sequence.on_host = False
            self.host_allocator.free(blocks)
