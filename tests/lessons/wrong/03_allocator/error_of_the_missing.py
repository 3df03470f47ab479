"""The error is told what is missing, for what was asked.

Words: 4 asked, 1 free
"""

from minipaged.reference.allocator import BlockAllocator as Right
from minipaged.reference.allocator import OutOfBlocksError


class BlockAllocator(Right):
    def allocate(self, num_blocks=1):
        if num_blocks > self.num_free:
            raise OutOfBlocksError(num_blocks - self.num_free, 0)
        return super().allocate(num_blocks)
