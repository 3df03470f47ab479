"""6. Beams that share blocks: fork, prune and reorder beams by changing counts, with almost no copying

README.md explains it. Write each body that raises NotImplementedError; the rest is given.
Grade it: pytest lessons/06_beam_sharing    A hint: minipaged lessons hint 6
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from minipaged.reference.allocator import OutOfBlocksError
from minipaged.reference.block_table import BlockTable
from minipaged.reference.copy_on_write import SharingAllocator, copy_on_write


def counts_after(
    block_tables: Sequence[BlockTable], parents: Iterable[int], allocator: SharingAllocator
) -> dict[int, int]:
    """The count that each block of the old beams will have once the new ones have taken their place.

    Returns {block: count}, with blocks that fall to 0. A block loses a use for each old table that names it
    and gains one for each new beam whose parent's table names it. Uses by other tables stay. Copies aren't
    counted yet. Changes nothing.
    """
    raise NotImplementedError


def copies_needed(
    block_tables: Sequence[BlockTable], parents: Iterable[int], allocator: SharingAllocator
) -> int:
    """How many blocks must be copied before each of the new beams can write its next token.

    A new beam writes to its last block if that has an empty slot. When several beams write to one block, each
    gets a copy, except the last one, which writes in place. If other tables name the block too, the last one
    also gets a copy. Changes nothing.
    """
    raise NotImplementedError


def fork_beams(
    block_tables: Sequence[BlockTable], parents: Iterable[int], allocator: SharingAllocator
) -> list[BlockTable]:
    """Give new beam i its own table with the blocks of beam `parents[i]`, and give up the old tables.

    A parent that is named several times is forked. A beam that is not named is pruned. Only counts change:
    the caller does copy-on-write before each write. It takes no block, so it cannot run out of blocks.
    Raises ValueError as `reorder_beams` does, and has then changed nothing.
    """
    raise NotImplementedError


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
    raise NotImplementedError


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
