"""A learner's allocator and copy-on-write, each of whose answers is looked at before the engine gets it.

The pool's own check comes once or twice a step and says that something is wrong; this says which call did it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, MutableSequence
from typing import Any

from ..errors import LearnerError
from ..reference.allocator import BlockAllocator, OutOfBlocksError
from .checks import show


def checked_allocator(own: type, file: str) -> type[BlockAllocator]:
    """The learner's allocator, what it returns looked at."""

    class Checked(own):  # type: ignore[misc, valid-type]
        def allocate(self, num_blocks: int = 1) -> list[int]:
            num_free = self.num_free
            asked = f"{file}: allocate({num_blocks}) with {num_free} free blocks"
            try:
                blocks = super().allocate(num_blocks)
            except OutOfBlocksError:
                if num_blocks <= num_free:
                    raise LearnerError(f"{asked} raised OutOfBlocksError") from None
                raise
            _check_blocks(f"{asked} returned {show(blocks)}", blocks, num_blocks, self)
            return blocks

        def share(self, blocks: Iterable[int]) -> None:
            blocks = list(blocks)
            before = {block: self.reference_count(block) for block in blocks}
            super().share(blocks)
            _check_counts(f"{file}: share({show(blocks)})", self, before, Counter(blocks))

        def free(self, blocks: Iterable[int]) -> list[int]:
            blocks = list(blocks)
            before = {block: self.reference_count(block) for block in blocks}
            unused = super().free(blocks)
            called = f"{file}: free({show(blocks)})"
            if not isinstance(unused, list):
                raise LearnerError(f"{called} returned {show(unused)}: a list of the blocks nobody uses now")
            _check_counts(called, self, before, {block: -times for block, times in Counter(blocks).items()})
            return unused

    Checked.__name__ = Checked.__qualname__ = own.__name__
    return Checked


def _check_blocks(returned: str, blocks: Any, num_blocks: int, allocator: Any) -> None:
    """What `allocate` returns must be a list of as many blocks as asked for, of this pool, each used once."""
    if not isinstance(blocks, list):
        raise LearnerError(f"{returned}: it must be a list of block ids")
    if len(blocks) != num_blocks:
        kind = "too few" if len(blocks) < num_blocks else "too many"
        raise LearnerError(f"{returned}: {kind}, {num_blocks} were asked for")
    for block, times in Counter(blocks).items():
        if not isinstance(block, int) or not 0 <= block < allocator.num_blocks:
            raise LearnerError(f"{returned}: the pool has blocks 0 to {allocator.num_blocks - 1}")
        if times > 1:
            raise LearnerError(f"{returned}: block {block} is handed out twice")
        if (count := allocator.reference_count(block)) != 1:
            raise LearnerError(f"{returned}: the count of block {block} is {count}, it has one user now")


def _check_counts(called: str, allocator: Any, before: Mapping[int, int], changes: Mapping[int, int]) -> None:
    """`share` adds a user for each time that a block is named, and `free` takes one."""
    for block, count in before.items():
        got, expected = allocator.reference_count(block), count + changes[block]
        if got != expected:
            raise LearnerError(
                f"{called}: the count of block {block} went from {count} to {got}, it must be {expected}"
            )


def checked_copy(own: Callable[..., Any], file: str) -> Callable[..., tuple[int, int] | None]:
    """The learner's copy_on_write, what it returns looked at."""

    def checked(block_table: MutableSequence[int], index: int, allocator: Any) -> tuple[int, int] | None:
        before = block_table[index]
        pair = own(block_table, index, allocator)
        after = block_table[index]
        changed = f"{file}: copy_on_write returned {pair!r} and changed the entry from {before} to {after}"
        if (pair is None) != (before == after) or (pair is not None and tuple(pair) != (before, after)):
            raise LearnerError(f"{changed}: the pair must be (source, destination), or None for no change")
        if (count := allocator.reference_count(after)) != 1:
            raise LearnerError(
                f"{changed}: the count of block {after} is {count}, so it isn't its own to write"
            )
        return pair

    return checked
