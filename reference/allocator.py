"""Hand out the blocks of the pool and count who uses each of them.

A block is free, in use (named by one or more block tables) or cached (named by none, but kept because a
prefix cache may need it again). Free blocks form a stack, so the block that was freed last is taken next:
it may still be in a processor's cache.
Lesson: lessons/03_allocator. Page: docs/concepts/allocator.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from operator import index

from .block_table import check_positive


class OutOfBlocksError(RuntimeError):
    """An allocation could not be met; nothing was changed. `missing` says how many blocks it lacked."""

    def __init__(self, requested: int, available: int) -> None:
        self.requested = requested
        self.available = available
        self.missing = requested - available
        super().__init__(f"asked for {requested} blocks, {available} available: {self.missing} missing")


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

    @property
    def num_cached(self) -> int:
        """Blocks with a count of zero that `retain` keeps off the free stack."""
        return self.num_blocks - self.num_free - self.num_in_use

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
        if num_blocks < 0:
            raise ValueError(f"num_blocks must not be negative, got {num_blocks}")
        if num_blocks > self.num_free:
            raise OutOfBlocksError(num_blocks, self.num_free)
        taken = [self._free.pop() for _ in range(num_blocks)]
        for block in taken:
            self._counts[block] = 1
        self._num_in_use += num_blocks
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """Raise the count of each block by one: one more table names it (fork, or a prefix hit).

        A cached block comes back into use. Raises ValueError for a block that is free.
        """
        blocks = self._checked(blocks)
        for block in blocks:
            if self._counts[block] == 0 and block not in self._retained:
                raise ValueError(f"block {block} is free: only a block in use or cached can be shared")
        for block in blocks:
            self._num_in_use += self._counts[block] == 0
            self._counts[block] += 1

    def free(self, blocks: Iterable[int]) -> list[int]:
        """Lower the count of each block by one, from the last to the first; return those that fell to zero.

        They go back on the free stack in that order. Retained blocks stay off it: they are cached now. A
        block may be named as often as its count says. Raises ValueError on a double free.
        """
        blocks = self._checked(blocks)
        for block, times in Counter(blocks).items():
            if times > self._counts[block]:
                count = self._counts[block]
                raise ValueError(f"double free: block {block} freed {times} times, its count is {count}")
        unused = []
        for block in reversed(blocks):
            self._counts[block] -= 1
            if self._counts[block] == 0:
                unused.append(block)
        self._free.extend(block for block in unused if block not in self._retained)
        self._num_in_use -= len(unused)
        return unused

    def retain(self, block: int) -> None:
        """Keep `block`, which must be in use, off the free stack when its count falls to zero."""
        if self.reference_count(block) == 0:
            raise ValueError(f"block {block} is not in use: only a block in use can be retained")
        if block in self._retained:
            raise ValueError(f"block {block} is retained already")
        self._retained.add(block)

    def release(self, block: int) -> None:
        """Undo `retain`. A block whose count is zero goes back on the free stack at once."""
        if block not in self._retained:
            raise ValueError(f"block {block} is not retained")
        self._retained.remove(block)
        if self._counts[block] == 0:
            self._free.append(block)

    def can_reuse(self, block: int) -> bool:
        """Whether `allocate` may hand `block` out once nobody names it any more."""
        return block not in self._retained

    def _checked(self, blocks: Iterable[int]) -> list[int]:
        """The ids as plain integers, known to be of this pool. Raises TypeError, ValueError."""
        ids = [index(block) for block in blocks]  # a tensor's items too, which hash by identity
        for block in ids:
            if not 0 <= block < self.num_blocks:
                raise self._unknown(block)
        return ids

    def _unknown(self, block: int) -> ValueError:
        return ValueError(f"block {block} is not one of the {self.num_blocks} blocks of this pool")
