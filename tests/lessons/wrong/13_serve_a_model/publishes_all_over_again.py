"""All full blocks are published at every step: what a step costs grows with the sequence.

Words: each once, what was full before
"""

from minipaged.engine.block_manager import BlockManager as Right


class BlockManager(Right):
    def publish(self, sequence, num_computed_tokens):
        sequence.num_computed_tokens = num_computed_tokens
        if self.enable_prefix_caching:
            stop = num_computed_tokens // self.block_size
            self.cache.publish(sequence.chain, sequence.table.blocks, 0, stop)
