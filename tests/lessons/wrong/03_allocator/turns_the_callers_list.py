"""`free` turns the caller's list around to walk it from its end.

Words: list is the caller's block table, don't change it
"""

from minipaged.reference.allocator import BlockAllocator as Right


class BlockAllocator(Right):
    def free(self, blocks):
        unused = super().free(blocks)
        if isinstance(blocks, list):
            blocks.reverse()
        return unused
