"""An empty list is refused.

Words: empty list is a normal case
"""

from minipaged.reference.allocator import BlockAllocator as Right


class BlockAllocator(Right):
    def share(self, blocks):
        blocks = list(blocks)
        if not blocks:
            raise ValueError("no blocks")
        super().share(blocks)

    def free(self, blocks):
        blocks = list(blocks)
        if not blocks:
            raise ValueError("no blocks")
        return super().free(blocks)
