"""`free` takes all uses of a block away at the first that it meets.

Words: falls to zero at the second time
"""

from minipaged.reference.allocator import BlockAllocator as Right


class BlockAllocator(Right):
    def free(self, blocks):
        blocks = list(blocks)
        met = list(dict.fromkeys(reversed(blocks)))
        grouped = [block for block in met for _ in range(blocks.count(block))]
        return super().free(grouped[::-1])
