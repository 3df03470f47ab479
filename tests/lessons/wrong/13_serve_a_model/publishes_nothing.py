"""Progress is noted first, so that start and stop are the same.

Words: before the new number is set
"""

from minipaged.engine.block_manager import BlockManager as Right


class BlockManager(Right):
    def publish(self, sequence, num_computed_tokens):
        sequence.num_computed_tokens = num_computed_tokens
        if self.enable_prefix_caching:
            start = sequence.num_computed_tokens // self.block_size
            stop = num_computed_tokens // self.block_size
            self.cache.publish(sequence.chain, sequence.table.blocks, start, stop)
