"""Freeing a free block is taken for harmless: a block ends up on the stack twice.

Words: double free, twice
"""

from minipaged.reference.allocator import BlockAllocator as Right


class BlockAllocator(Right):
    def free(self, blocks):
        unused = []
        for block in reversed(self._checked(blocks)):
            self._counts[block] = max(self._counts[block] - 1, 0)
            if self._counts[block] == 0:
                unused.append(block)
        self._free.extend(unused)
        self._num_in_use -= len(unused)
        return unused
