"""The table is repointed, but the pair of the copy isn't returned.

Words: copy_on_write(blocks, last index, cache), got None
"""

from minipaged.engine.block_manager import BlockManager as Right


class BlockManager(Right):
    def append_slot(self, sequence):
        super().append_slot(sequence)
        return None
