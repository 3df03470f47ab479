"""Where nothing is published, progress isn't noted.

Words: noted either way
"""

from minipaged.engine.block_manager import BlockManager as Right


class BlockManager(Right):
    def publish(self, sequence, num_computed_tokens):
        if self.enable_prefix_caching:
            super().publish(sequence, num_computed_tokens)
