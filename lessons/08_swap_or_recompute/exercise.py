"""8. Swap or recompute: take the blocks of a request away, and bring them back with nothing lost

README.md explains it. Write each body that raises NotImplementedError; the rest is given.
Grade it: pytest lessons/08_swap_or_recompute    A hint: minipaged lessons hint 8
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, MutableSequence, Sequence
from copy import deepcopy
from operator import index
from typing import Any

from minipaged.reference.allocator import OutOfBlocksError
from minipaged.reference.copy_on_write import SharingAllocator


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
    raise NotImplementedError


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
    raise NotImplementedError


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
    raise NotImplementedError


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
