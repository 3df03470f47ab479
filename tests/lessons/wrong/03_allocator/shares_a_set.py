"""`share` takes its blocks for a set: one that is named twice gets one user more.

Words: named twice, a set would forget
"""

from minipaged.reference.allocator import BlockAllocator as Right


class BlockAllocator(Right):
    def share(self, blocks):
        super().share(set(blocks))
