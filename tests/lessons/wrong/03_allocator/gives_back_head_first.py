"""`free` pushes the blocks in the order of the table, so the tail is taken first next time.

Words: from the tail on
"""

from minipaged.reference.allocator import BlockAllocator as Right


class BlockAllocator(Right):
    def free(self, blocks):
        blocks = list(blocks)
        return super().free(blocks[::-1])
