"""Move the blocks of a preempted request to host memory, and back when there is room again.

When the pool runs dry, some request must give its blocks up. They can be copied to a second pool in host
memory (swapping) or thrown away and computed again (recomputation): which is cheaper depends on the bus, the
model and the block size. All sequences of a request move together, since they share blocks.
Twin: kernels/swap.py. Lesson: lessons/08_swap_or_recompute. Page: docs/concepts/preemption.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, MutableSequence, Sequence
from copy import deepcopy
from operator import index
from typing import Any

from .allocator import OutOfBlocksError
from .copy_on_write import SharingAllocator, num_available_after


def swap_out(
    block_tables: Sequence[MutableSequence[int]],
    allocator: SharingAllocator,
    host_allocator: SharingAllocator,
) -> list[tuple[int, int]]:
    """Repoint the tables of a group from the device pool to the host pool (paper section 4.5).

    block_tables: the tables of all sequences of one request, lists of block ids, changed in place. Returns
    the pairs (device block, host block) to hand to `swap_blocks`, in order of first appearance. A block that
    several of the tables name moves once and is as shared on the host as it was. One that other tables name
    too is copied as well, and stays on the device for those. The paper starts no new request while one is
    out, and bounds the host pool by the size of the device pool; here a full host pool is an error.

    On return the device blocks are free or cached, but the caller has not copied their content yet. Nothing
    may be written to them before. On one stream, a caller that launches the copies first keeps that order.

    Raises OutOfBlocksError where the host pool lacks blocks, and ValueError where a table occurs twice or a
    block isn't in use as often as the tables say. The tables and both pools are then as they were.
    """
    return _move(block_tables, allocator, host_allocator, resident={})


def swap_in(
    block_tables: Sequence[MutableSequence[int]],
    allocator: SharingAllocator,
    host_allocator: SharingAllocator,
    resident: Mapping[int, int] | None = None,
) -> list[tuple[int, int]]:
    """Repoint the tables of a group from the host pool back to the device pool (paper section 4.5).

    The way back of `swap_out`, with the same promises; the pairs are (host block, device block). `resident`
    maps host blocks to device blocks that still hold the same content, found by their prefix: these are
    shared instead of copied, and need no new block. Host blocks of other groups may be among its keys.

    Raises OutOfBlocksError where the device pool lacks blocks, and ValueError as `swap_out` does or where a
    resident block is free. The tables and both pools are then as they were.
    """
    return _move(block_tables, host_allocator, allocator, resident=resident or {})


def swap_blocks(
    source_pool: Sequence[Any],
    destination_pool: MutableSequence[Any],
    sources: Sequence[int],
    destinations: Sequence[int],
) -> None:
    """Copy whole blocks into another pool: destination_pool[destinations[i]] = source_pool[sources[i]].

    Both pools: [num_blocks][...], blocks of one shape; the second is changed in place. A launch copies all
    pairs at the same time, so a block may be a destination only once; a source may serve several. Block 3
    of one pool is not block 3 of the other, so equal ids are fine. Raises ValueError otherwise, and where
    both pools are the same: `copy_blocks` is for that. Raises TypeError for an id that is no integer.
    """
    sources, destinations = list(map(index, sources)), list(map(index, destinations))
    if source_pool is destination_pool:
        raise ValueError("source_pool and destination_pool are the same: use copy_blocks within a pool")
    if len(sources) != len(destinations):
        raise ValueError(f"{len(sources)} sources but {len(destinations)} destinations")
    for name, blocks, pool in (
        ("sources", sources, source_pool),
        ("destinations", destinations, destination_pool),
    ):
        for block in blocks:
            if not 0 <= block < len(pool):
                raise ValueError(f"{name}: block {block} is not one of the {len(pool)} blocks of its pool")
    if len(set(destinations)) != len(destinations):
        raise ValueError(f"destinations must be distinct, got {destinations}")
    for source, destination in zip(sources, destinations, strict=True):
        destination_pool[destination] = deepcopy(source_pool[source])


def _move(
    block_tables: Sequence[MutableSequence[int]],
    source: SharingAllocator,
    destination: SharingAllocator,
    resident: Mapping[int, int],
) -> list[tuple[int, int]]:
    """Repoint tables from one pool to the other, and return the pairs whose content must be copied."""
    users = _count_users(block_tables, source)
    reused = {block: index(resident[block]) for block in users if block in resident}
    absent = [block for block in users if block not in reused]
    # 1. is there room? a cached block that is used as it is can't be handed out
    available = num_available_after(reused.values(), destination)
    if len(absent) > available:
        raise OutOfBlocksError(len(absent), available)
    # 2. use what is there already, before `allocate` evicts it, and take a block for each of the others
    taken = [reused[block] for block in reused for _ in range(users[block])]
    destination.share(taken)
    try:
        moved = dict(zip(absent, destination.allocate(len(absent)), strict=True))
        taken += moved.values()
        # 3. a block that n tables name has one user by now, and n - 1 more
        destination.share([moved[block] for block in moved for _ in range(users[block] - 1)])
    except BaseException:
        destination.free(taken)
        raise
    # 4. only now give up the old blocks, and repoint the tables
    new_blocks = reused | moved
    for table in block_tables:
        source.free(table)
        table[:] = [new_blocks[index(block)] for block in table]
    return list(moved.items())


def _count_users(block_tables: Sequence[MutableSequence[int]], allocator: SharingAllocator) -> dict[int, int]:
    """Blocks in order of first appearance, with the number of entries naming each; all must be in use."""
    for table in block_tables:
        if not isinstance(table, MutableSequence):
            raise TypeError(f"block_tables must hold lists, which can be repointed, got {table!r}")
    if len({id(table) for table in block_tables}) != len(block_tables):
        raise ValueError("block_tables holds the same table twice")
    users = Counter(index(block) for table in block_tables for block in table)
    for block, times in users.items():
        count = allocator.reference_count(block)
        if times > count:
            raise ValueError(f"block {block} is named {times} times in block_tables, its count is {count}")
    return users
