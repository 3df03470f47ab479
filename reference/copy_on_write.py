"""Let sequences share a block until one of them writes to it, as processes share a page after fork().

Before a sequence writes a token into a block that other tables name too, it gets a copy of its own. The whole
block is copied. Slots past the point where the sequences part are stale, and nothing reads them.
Twin: kernels/copy_on_write.py. Lesson: lessons/05_copy_on_write. Page: docs/concepts/copy_on_write.md.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, MutableSequence, Sequence
from copy import deepcopy
from typing import Any, Protocol, TypeVar

Place = TypeVar("Place", bound=Hashable)


class Allocator(Protocol):
    """What copy-on-write asks of an allocator."""

    def reference_count(self, block: int) -> int:
        """How many table entries name `block`."""

    def allocate(self, num_blocks: int = 1) -> list[int]:
        """Take blocks, all or nothing."""

    def free(self, blocks: Sequence[int]) -> list[int]:
        """Give up one use of each block."""


class SharingAllocator(Allocator, Protocol):
    """What sharing a block asks of an allocator. `BlockAllocator` and `PrefixCache` have it."""

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can hand out."""

    def can_reuse(self, block: int) -> bool:
        """Whether `allocate` may hand `block` out once nobody names it any more."""

    def share(self, blocks: Sequence[int]) -> None:
        """Add one use of each block."""


def copy_on_write(
    block_table: MutableSequence[int], index: int, allocator: Allocator
) -> tuple[int, int] | None:
    """Make entry `index` of a table safe to write to (paper section 4.4).

    Returns None if no other entry names the block. Otherwise takes a new block, writes it into the entry and
    gives up one use of the old block. Returns the pair (source, destination): `copy_blocks` must copy it
    before anything is written. If no block is left, `allocate` raises OutOfBlocksError. A block that is not
    in use raises ValueError. The table and all counts are then as they were.
    """
    source = block_table[index]
    users = allocator.reference_count(source)
    if users == 0:
        raise ValueError(f"block {source} is not in use: no table may name it")
    if users == 1:  # 1. is anyone else using it?
        return None
    (destination,) = allocator.allocate(1)  # 2. take a block; the caller copies what was written
    block_table[index] = destination  # 3. repoint this table
    allocator.free([source])  # 4. one user fewer
    return source, destination


def num_available_after(shared: Iterable[int], allocator: SharingAllocator) -> int:
    """How many blocks can be handed out once `shared` are in use: a cached one among them no longer can."""
    taken = [b for b in set(shared) if allocator.reference_count(b) == 0 and allocator.can_reuse(b)]
    return allocator.num_available - len(taken)


def independent_copies(pairs: Sequence[tuple[Place, Place]]) -> list[list[tuple[Place, Place]]]:
    """Cut an ordered list of pairs into launches that copy all of their pairs at once.

    A block may be given up and taken again between two copies of a step. It is then a destination twice, or
    first a source and later a destination. A pair opens a new launch only if it writes a place that the
    current launch reads or writes, or reads a place that the launch writes. The pairs stay in their order.
    A place is a block id, or any other name of a block if there are several pools.
    """
    launches: list[list[tuple[Place, Place]]] = []
    read: set[Place] = set()
    written: set[Place] = set()
    for source, destination in pairs:
        if not launches or source in written or destination in read | written:
            launches.append([])
            read, written = set(), set()
        launches[-1].append((source, destination))
        read.add(source)
        written.add(destination)
    return launches


def copy_blocks(pool: MutableSequence[Any], sources: Sequence[int], destinations: Sequence[int]) -> None:
    """Copy whole blocks within the pool: pool[destinations[i]] = pool[sources[i]], for all i at once.

    pool: [num_blocks][...], changed in place. Afterwards a block and its copy are equal and have nothing in
    common: what is written to one, at any depth, is not seen in the other. Since a launch copies all pairs
    at the same time, a block may be a destination only once, and not a source as well. Raises ValueError
    otherwise (`_check_copies`), and copies nothing.
    """
    _check_copies(pool, sources, destinations)
    for source, destination in zip(sources, destinations, strict=True):
        pool[destination] = deepcopy(pool[source])


def _check_copies(pool: Sequence[Any], sources: Sequence[int], destinations: Sequence[int]) -> None:
    """Raise ValueError for pairs that can't be copied all at once, or for no block of this pool."""
    if len(sources) != len(destinations):
        raise ValueError(f"{len(sources)} sources but {len(destinations)} destinations")
    for block in [*sources, *destinations]:
        if not 0 <= block < len(pool):
            raise ValueError(f"block {block} is not one of the {len(pool)} blocks of this pool")
    if len(set(destinations)) != len(destinations):
        raise ValueError(f"destinations must be distinct, got {list(destinations)}")
    if both := set(sources) & set(destinations):
        raise ValueError(f"blocks {sorted(both)} are both source and destination")
