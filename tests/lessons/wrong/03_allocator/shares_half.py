"""`share` raises counts while it is still looking for a block that is free.

Words: all or nothing
"""

from minipaged.reference.allocator import BlockAllocator as Right


class BlockAllocator(Right):
    def share(self, blocks):
        for block in self._checked(blocks):
            if self._counts[block] == 0:
                raise ValueError(f"block {block} is free")
            self._counts[block] += 1
