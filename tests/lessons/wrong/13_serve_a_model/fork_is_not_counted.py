"""A fork copies the table and tells nobody.

Words: each block is in two tables
"""

from minipaged.engine.block_manager import BlockManager as Right


class BlockManager(Right):
    def fork(self, sequence):
        return sequence.table.fork()
