"""A learner's allocator and copy-on-write, with a check of each result before the engine gets it.

The pool's own check runs once or twice per step and says that something is wrong. This one names the call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, MutableSequence
from contextlib import contextmanager
from typing import Any

from ..errors import LearnerError
from ..reference.allocator import BlockAllocator, OutOfBlocksError
from .checks import show


def checked_allocator(own: type, file: str) -> type[BlockAllocator]:
    """Return the learner's allocator with a check of each result."""

    class Checked(own):  # type: ignore[misc, valid-type]
        def allocate(self, num_blocks: int = 1) -> list[int]:
            num_free = self.num_free
            call = f"{file}: allocate({num_blocks}) with {num_free} free blocks"
            try:
                blocks = super().allocate(num_blocks)
            except OutOfBlocksError:
                if num_blocks <= num_free:
                    raise LearnerError(f"{call} raised OutOfBlocksError") from None
                raise
            _check_blocks(f"{call} returned {show(blocks)}", blocks, num_blocks, self)
            return blocks

        def share(self, blocks: Iterable[int]) -> None:
            blocks = list(blocks)
            with _checked_counts(f"{file}: share({show(blocks)})", self, blocks, +1):
                super().share(blocks)

        def free(self, blocks: Iterable[int]) -> list[int]:
            blocks = list(blocks)
            call = f"{file}: free({show(blocks)})"
            with _checked_counts(call, self, blocks, -1):
                unused = super().free(blocks)
                if not isinstance(unused, list):
                    raise LearnerError(
                        f"{call} returned {show(unused)}: a list of the blocks nobody uses now"
                    )
            return unused

    Checked.__name__ = Checked.__qualname__ = own.__name__
    return Checked


def _check_blocks(returned: str, blocks: Any, num_blocks: int, allocator: Any) -> None:
    """Check the result of `allocate`: a list of `num_blocks` different blocks, with one user per block."""
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


@contextmanager
def _checked_counts(call: str, allocator: Any, blocks: list[int], change: int) -> Iterator[None]:
    """Check that the code inside adds `change` to a block's count per time that `blocks` names it."""
    before = {block: allocator.reference_count(block) for block in blocks}
    yield
    for block, times in Counter(blocks).items():
        count, expected = allocator.reference_count(block), before[block] + change * times
        if count != expected:
            changed = f"went from {before[block]} to {count}, it must be {expected}"
            raise LearnerError(f"{call}: the count of block {block} {changed}")


def checked_copy(own: Callable[..., Any], file: str) -> Callable[..., tuple[int, int] | None]:
    """Return the learner's copy_on_write with a check of each result."""

    def checked(block_table: MutableSequence[int], index: int, allocator: Any) -> tuple[int, int] | None:
        before = block_table[index]
        pair = own(block_table, index, allocator)
        after = block_table[index]
        changed = f"{file}: copy_on_write returned {pair!r} and changed the entry from {before} to {after}"
        if (pair is None) != (before == after) or (pair is not None and tuple(pair) != (before, after)):
            raise LearnerError(f"{changed}: the pair must be (source, destination), or None for no change")
        if (count := allocator.reference_count(after)) != 1:
            shared = f"the count of block {after} is {count}, so it isn't its own to write"
            raise LearnerError(f"{changed}: {shared}")
        return pair

    return checked
