"""`pop(0)` takes from the wrong end of the stack.

Words: top of the stack, end of the list
"""

from minipaged.reference.allocator import BlockAllocator as Right
from minipaged.reference.allocator import OutOfBlocksError


class BlockAllocator(Right):
    def allocate(self, num_blocks=1):
        if num_blocks < 0:
            raise ValueError(num_blocks)
        if num_blocks > self.num_free:
            raise OutOfBlocksError(num_blocks, self.num_free)
        taken = [self._free.pop(0) for _ in range(num_blocks)]
        for block in taken:
            self._counts[block] = 1
        self._num_in_use += num_blocks
        return taken
