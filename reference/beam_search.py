"""Let the beams of one request share blocks, and move the shares as they are forked, pruned and reordered.

Beam search keeps the k best continuations of a prompt. At each step a beam is continued once, several times
or not at all. The tables of the new beams are copies of their parents' tables. In memory only a last block
that is not full must be copied: each beam that writes to it gets a copy, except the last one.
Twin: kernels/beam_search.py. Lesson: lessons/06_beam_sharing. Page: docs/concepts/beam_search.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from .allocator import OutOfBlocksError
from .block_table import BlockTable
from .copy_on_write import SharingAllocator, copy_on_write


def counts_after(
    block_tables: Sequence[BlockTable], parents: Iterable[int], allocator: SharingAllocator
) -> dict[int, int]:
    """The count that each block of the old beams will have once the new ones have taken their place.

    Returns {block: count}, with blocks that fall to 0. A block loses a use for each old table that names it
    and gains one for each new beam whose parent's table names it. Uses by other tables stay. Copies aren't
    counted yet. Changes nothing.
    """
    before = Counter(block for table in block_tables for block in table.blocks)
    after = Counter(block for parent in parents for block in block_tables[parent].blocks)
    return {block: allocator.reference_count(block) - before[block] + after[block] for block in before}


def copies_needed(
    block_tables: Sequence[BlockTable], parents: Iterable[int], allocator: SharingAllocator
) -> int:
    """How many blocks must be copied before each of the new beams can write its next token.

    A new beam writes to its last block if that has an empty slot. When several beams write to one block, each
    gets a copy, except the last one, which writes in place. If other tables name the block too, the last one
    also gets a copy. Changes nothing.
    """
    parents = list(parents)
    counts = counts_after(block_tables, parents, allocator)
    continued = [block_tables[parent] for parent in parents]
    writers = Counter(table.blocks[-1] for table in continued if table.num_empty_slots)
    return sum(number - (counts[block] == number) for block, number in writers.items())


def fork_beams(
    block_tables: Sequence[BlockTable], parents: Iterable[int], allocator: SharingAllocator
) -> list[BlockTable]:
    """Give new beam i its own table with the blocks of beam `parents[i]`, and give up the old tables.

    A parent that is named several times is forked. A beam that is not named is pruned. Only counts change:
    the caller does copy-on-write before each write. It takes no block, so it cannot run out of blocks.
    Raises ValueError as `reorder_beams` does, and has then changed nothing.
    """
    parents = list(parents)
    _check_beams(block_tables, parents, allocator)
    new_tables = [block_tables[parent].fork() for parent in parents]
    # Counted first, and all at once: a block that goes on must not fall to zero in between.
    allocator.share([block for table in new_tables for block in table.blocks])
    for table in block_tables:
        allocator.free(table.blocks)
    return new_tables


def reorder_beams(
    block_tables: Sequence[BlockTable], parents: Iterable[int], allocator: SharingAllocator
) -> tuple[list[BlockTable], list[tuple[int, int]]]:
    """Replace a request's beams by new ones: new beam i continues beam `parents[i]` (paper section 4.4).

    A parent that is named several times is forked. A beam that is not named is pruned. There may be more or
    fewer new beams than old ones. Each new beam whose last block has an empty slot gets a copy of that
    block, in the order of the new beams, unless no other table names the block by then. Returns the tables
    of the new beams and the pairs (source, destination): `copy_blocks` must copy them before anything is
    written. The old tables are given up, and must not be used again.

    Raises ValueError for a parent that isn't there and for tables whose blocks aren't in use. Raises
    OutOfBlocksError if there are too few blocks for the copies. Nothing has changed then.
    """
    parents = list(parents)
    _check_beams(block_tables, parents, allocator)
    _check_room(block_tables, parents, allocator)
    new_tables = fork_beams(block_tables, parents, allocator)
    last_blocks = [
        copy_on_write(table.blocks, len(table) - 1, allocator)
        for table in new_tables
        if table.num_empty_slots
    ]
    return new_tables, [pair for pair in last_blocks if pair is not None]


def _check_beams(
    block_tables: Sequence[BlockTable], parents: Sequence[int], allocator: SharingAllocator
) -> None:
    """Raise ValueError unless the old tables can be given up, and each parent is one of them."""
    for block, times in Counter(block for table in block_tables for block in table.blocks).items():
        if times > allocator.reference_count(block):
            count = allocator.reference_count(block)
            raise ValueError(f"block_tables name block {block} {times} times, its count is {count}")
    for parent in parents:
        if not 0 <= parent < len(block_tables):
            raise ValueError(f"parents: {parent} is not one of the {len(block_tables)} beams")


def _check_room(
    block_tables: Sequence[BlockTable], parents: Sequence[int], allocator: SharingAllocator
) -> None:
    """Raise OutOfBlocksError unless the copies fit: in what is available and what the old beams give up."""
    needed = copies_needed(block_tables, parents, allocator)
    counts = counts_after(block_tables, parents, allocator)
    dropped = [block for block, count in counts.items() if count == 0]
    available = allocator.num_available + sum(map(allocator.can_reuse, dropped))
    if needed > available:
        raise OutOfBlocksError(needed, available)
