"""`enable_prefix_caching` is forgotten.

Words: look at enable_prefix_caching
"""

from minipaged.engine.block_manager import BlockManager as Right


class BlockManager(Right):
    def publish(self, sequence, num_computed_tokens):
        start = sequence.num_computed_tokens // self.block_size
        sequence.num_computed_tokens = num_computed_tokens
        stop = num_computed_tokens // self.block_size
        self.cache.publish(sequence.chain, sequence.table.blocks, start, stop)
