"""The last free block is never handed out.

Words: the last free block can be handed out too
"""

from minipaged.reference.allocator import BlockAllocator as Right
from minipaged.reference.allocator import OutOfBlocksError


class BlockAllocator(Right):
    def allocate(self, num_blocks=1):
        if num_blocks and num_blocks >= self.num_free:
            raise OutOfBlocksError(num_blocks, self.num_free)
        return super().allocate(num_blocks)
