"""Blocks are popped one by one until the stack is empty, and those taken so far are kept.

Words: partial, count first
"""

from minipaged.reference.allocator import BlockAllocator as Right
from minipaged.reference.allocator import OutOfBlocksError


class BlockAllocator(Right):
    def allocate(self, num_blocks=1):
        if num_blocks < 0:
            raise ValueError(num_blocks)
        taken = []
        available = self.num_free
        for _ in range(num_blocks):
            if not self._free:
                raise OutOfBlocksError(num_blocks, available)
            block = self._free.pop()
            self._counts[block] = 1
            self._num_in_use += 1
            taken.append(block)
        return taken
