"""Let the beams of one request share blocks, and move the shares as they are forked, pruned and reordered.

Beam search keeps the k best continuations of a prompt. At each step a beam may be continued several times, or
not at all: the tables of the new beams are copies of their parents', and only a last block that is not yet
full has to be copied in memory, once for each beam but the last that will write to it.
Twin: kernels/beam_search.py. Lesson: lessons/06_beam_sharing. Page: docs/concepts/beam_search.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from .allocator import OutOfBlocksError
from .block_table import BlockTable
from .copy_on_write import SharingAllocator, copy_on_write


def reorder_beams(
    block_tables: Sequence[BlockTable], parents: Iterable[int], allocator: SharingAllocator
) -> tuple[list[BlockTable], list[tuple[int, int]]]:
    """Replace a request's beams by new ones: new beam i continues beam `parents[i]` (paper section 4.4).

    A parent named several times is forked, one not named is pruned; there may be more or fewer new beams
    than old ones. Returns the tables of the new beams, and the pairs (source, destination) to hand to
    `copy_blocks` before anything is written. The old tables are given up, and must not be used again.

    Raises ValueError for a parent that isn't there or tables whose blocks aren't in use, and
    OutOfBlocksError where the blocks don't suffice for the copies; nothing has changed then.
    """
    parents = list(parents)
    _check_room(block_tables, _forks(block_tables, parents, allocator), allocator)
    new_tables = fork_beams(block_tables, parents, allocator)
    last_blocks = [
        copy_on_write(table.blocks, len(table) - 1, allocator)
        for table in new_tables
        if table.num_empty_slots
    ]
    return new_tables, [pair for pair in last_blocks if pair is not None]


def fork_beams(
    block_tables: Sequence[BlockTable], parents: Iterable[int], allocator: SharingAllocator
) -> list[BlockTable]:
    """`reorder_beams` without the copies: for whoever does copy-on-write before each write anyway.

    Needs no block, so it can't fail for want of one. Raises ValueError as `reorder_beams` does.
    """
    new_tables = _forks(block_tables, parents, allocator)
    # Counted first, and all at once: a block that goes on must not fall to zero in between.
    allocator.share([block for table in new_tables for block in table.blocks])
    for table in block_tables:
        allocator.free(table.blocks)
    return new_tables


def _forks(
    block_tables: Sequence[BlockTable], parents: Iterable[int], allocator: SharingAllocator
) -> list[BlockTable]:
    """The new tables, once it is clear that the old ones can be given up."""
    parents = list(parents)
    for block, times in Counter(block for table in block_tables for block in table.blocks).items():
        if times > allocator.reference_count(block):
            count = allocator.reference_count(block)
            raise ValueError(f"block_tables name block {block} {times} times, its count is {count}")
    for parent in parents:
        if not 0 <= parent < len(block_tables):
            raise ValueError(f"parents: {parent} is not one of the {len(block_tables)} beams")
    return [block_tables[parent].fork() for parent in parents]


def _check_room(
    old_tables: Sequence[BlockTable], new_tables: Sequence[BlockTable], allocator: SharingAllocator
) -> None:
    """Raise OutOfBlocksError unless the copies fit: in what is available and what the old beams give up."""
    before = Counter(block for table in old_tables for block in table.blocks)
    after = Counter(block for table in new_tables for block in table.blocks)
    count = {block: allocator.reference_count(block) - before[block] + after[block] for block in before}
    writers = Counter(table.blocks[-1] for table in new_tables if table.num_empty_slots)
    # The last writer keeps the block, unless others than these beams read it.
    needed = sum(number - (count[block] == number) for block, number in writers.items())
    dropped = [block for block, number in count.items() if number == 0]
    available = allocator.num_available + sum(map(allocator.can_reuse, dropped))
    if needed > available:
        raise OutOfBlocksError(needed, available)
