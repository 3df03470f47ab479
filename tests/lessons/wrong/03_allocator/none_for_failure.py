"""A full pool is answered with None, as malloc does.

Words: OutOfBlocksError
"""

from minipaged.reference.allocator import BlockAllocator as Right


class BlockAllocator(Right):
    def allocate(self, num_blocks=1):
        if num_blocks > self.num_free:
            return None
        return super().allocate(num_blocks)
