"""3. The allocator: hand out blocks from a free stack and count their users, all or nothing

README.md explains it. Write each body that raises NotImplementedError; the rest is given.
Grade it: pytest lessons/03_allocator    A hint: minipaged lessons hint 3
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from operator import index

from minipaged.reference.allocator import OutOfBlocksError
from minipaged.reference.block_table import check_positive


class BlockAllocator:
    """A free stack and one reference count per block (paper sections 4.2 and 4.4).

    The stack starts with block 0 on top. `allocate` takes from the top. `free` begins with the last block, so
    blocks freed together are taken again in the same order. Every operation is all or nothing.
    """

    def __init__(self, num_blocks: int) -> None:
        check_positive("num_blocks", num_blocks)
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._counts = [0] * num_blocks
        self._retained: set[int] = set()
        self._num_in_use = 0

    @property
    def num_free(self) -> int:
        """Blocks on the free stack."""
        return len(self._free)

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can hand out: here the free ones; a prefix cache can evict more."""
        return self.num_free

    @property
    def num_in_use(self) -> int:
        """Blocks with a count of one or more."""
        return self._num_in_use

    def reference_count(self, block: int) -> int:
        """How many live block-table entries name `block`."""
        if not 0 <= index(block) < self.num_blocks:
            raise self._unknown(block)
        return self._counts[block]

    def free_order(self) -> list[int]:
        """The free blocks in the order in which `allocate` will take them."""
        return self._free[::-1]

    def allocate(self, num_blocks: int = 1) -> list[int]:
        """Take `num_blocks` free blocks, each with a count of one.

        Raises OutOfBlocksError, and takes none, where fewer are free.
        """
        raise NotImplementedError

    def share(self, blocks: Iterable[int]) -> None:
        """Raise the count of each block by one: one more table names it (fork, or a prefix hit).

        Raises ValueError for a block that is free.
        """
        raise NotImplementedError

    def free(self, blocks: Iterable[int]) -> list[int]:
        """Lower the count of each block by one, from the last to the first; return those that fell to zero.

        They go back on the free stack in that order. A block may be named as often as its count says. Raises
        ValueError on a double free.
        """
        raise NotImplementedError

    def _checked(self, blocks: Iterable[int]) -> list[int]:
        """The ids as plain integers, known to be of this pool. Raises TypeError, ValueError."""
        ids = [index(block) for block in blocks]  # a tensor's items too, which hash by identity
        for block in ids:
            if not 0 <= block < self.num_blocks:
                raise self._unknown(block)
        return ids

    def _unknown(self, block: int) -> ValueError:
        return ValueError(f"block {block} is not one of the {self.num_blocks} blocks of this pool")
