"""Move the blocks of many beams at once: gather tables by parent, shift the counts, list the copies.

All beams of a batch move together, and their blocks come out in the order of the twin, which goes beam by
beam. The host launches kernels and waits for none of them: a tensor says whether the move was possible.
Twin: reference/beam_search.py. Page: docs/concepts/beam_search.md.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ._reference_counts import TILE, apply_changes, note_changes, push_unused
from ._tables import check_beams, used_entries
from ._triton import require_launch, tl, triton
from .allocator import BlockAllocator


@triton.jit
def _gather_kernel(
    table_ptr, tokens_ptr, parent_ptr, new_table_ptr, new_tokens_ptr, refused_ptr, old_beams, max_blocks,
    TILE: tl.constexpr,
):  # fmt: skip
    """Give a new beam a copy of its parent's table and number of tokens: one program per new beam."""
    beam = tl.program_id(0).to(tl.int64)
    parent = tl.load(parent_ptr + beam).to(tl.int64)
    known = (parent >= 0) & (parent < old_beams)
    width = tl.where(known, max_blocks, 0)
    for start in range(0, max_blocks, TILE):
        columns = start + tl.arange(0, TILE)
        blocks = tl.load(table_ptr + parent * max_blocks + columns, mask=columns < width, other=-1)
        tl.store(new_table_ptr + beam * max_blocks + columns, blocks, mask=columns < max_blocks)
    tl.store(new_tokens_ptr + beam, tl.load(tokens_ptr + parent, mask=known, other=0))
    tl.atomic_add(refused_ptr, tl.where(known, 0, -1))


@triton.jit
def _next_entries(tokens_ptr, beams, mask, max_blocks, BLOCK_SIZE: tl.constexpr):
    """Return the entries that name the blocks of the next tokens, -1 where the last block is full."""
    tokens = tl.load(tokens_ptr + beams, mask=mask, other=0)
    entries = beams.to(tl.int64) * max_blocks + tokens // BLOCK_SIZE
    return tl.where(tokens % BLOCK_SIZE > 0, entries, -1)


@triton.jit
def _find_copies_kernel(
    table_ptr, tokens_ptr, count_ptr, change_ptr, refused_ptr, copied_ptr, max_blocks,
    BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Find the entry whose block a new beam must copy before it writes: one program per new beam.

    Beams write in their order, and a beam that gets a copy no longer uses the shared block. So a beam shares
    its block with the users that it will have, less the writers before this beam. A beam that is alone in
    its block by then keeps it, and its entry stays -1.
    """
    if tl.load(refused_ptr) != 0:
        return
    beam = tl.program_id(0)
    entry = _next_entries(tokens_ptr, beam, beam >= 0, max_blocks, BLOCK_SIZE)  # a mask that is always true
    block = tl.load(table_ptr + entry, mask=entry >= 0, other=-1)
    users = tl.load(count_ptr + block, mask=entry >= 0, other=0)
    users += tl.load(change_ptr + block, mask=entry >= 0, other=0)
    for start in range(0, beam, TILE):
        beams = start + tl.arange(0, TILE)
        entries = _next_entries(tokens_ptr, beams, beams < beam, max_blocks, BLOCK_SIZE)
        blocks = tl.load(table_ptr + entries, mask=entries >= 0, other=-1)
        users -= tl.sum((blocks == block).to(tl.int32))
    tl.store(copied_ptr + beam, entry, mask=users > 1)


@triton.jit
def _take_copies_kernel(
    copied_ptr, table_ptr, stack_ptr, free_count_ptr, count_ptr, source_ptr, destination_ptr, refused_ptr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Take a block for the entry to be copied, list the pair, repoint the entry: one program per new beam."""
    beam = tl.program_id(0)
    entry = tl.load(copied_ptr + beam)
    if (entry < 0) | (tl.load(refused_ptr) != 0):
        return
    copies_before = 0
    for start in range(0, beam, TILE):
        beams = start + tl.arange(0, TILE)
        entries = tl.load(copied_ptr + beams, mask=beams < beam, other=-1)
        copies_before += tl.sum((entries >= 0).to(tl.int32))
    source = tl.load(table_ptr + entry)
    destination = tl.load(stack_ptr + tl.load(free_count_ptr) - 1 - copies_before)
    tl.store(source_ptr + copies_before, source)
    tl.store(destination_ptr + copies_before, destination)
    tl.store(table_ptr + entry, destination)
    tl.atomic_add(count_ptr + source, -1)
    tl.store(count_ptr + destination, 1)


class Reordered(NamedTuple):
    """What `reorder_beams` says, on the device."""

    block_tables: Tensor  # int32 [new_beams, max_blocks], -1 past the end of a table
    num_tokens: Tensor  # int32 [new_beams]
    sources: Tensor  # int32 [new_beams], blocks to copy, then -1
    destinations: Tensor  # int32 [new_beams], where to, then -1
    unused: Tensor  # int32 [old_beams * max_blocks], blocks that nobody names any more, then -1
    refused: Tensor  # int32 [1], 0 where it was done


def reorder_beams(
    block_tables: Tensor, parents: Tensor, allocator: BlockAllocator, num_tokens: Tensor, block_size: int
) -> Reordered:
    """Replace beams by new ones: new beam i continues beam parents[i] (paper section 4.4).

    Several requests may share a call: their beams are rows of one table. A parent named several times is
    forked, one not named is pruned. The pairs (source, destination) are to be copied by `copy_blocks` before
    anything is written; the old tables are not to be used again.

    Args:
        block_tables: int32 [old_beams, max_blocks], as the allocator filled them; any strides.
        parents: int32 [new_beams].
        num_tokens: int32 [old_beams], tokens that have a slot; they say how long each table is.

    `refused` above 0: so many blocks are missing for the copies. Below 0: so many parents are no rows,
    num_tokens beyond a table, entries no blocks, or entries more than their block's count. Then no count and
    no free block has changed, and the other results mean nothing.
    """
    check_beams(block_tables, parents, num_tokens, block_size, allocator.counts.device)
    require_launch(_gather_kernel, block_tables, "block_tables")
    old_tables = used_entries(block_tables, num_tokens, allocator.num_blocks, block_size)
    capacity = block_tables.shape[1] * block_size
    refused = -((num_tokens < 0) | (num_tokens > capacity)).sum(dtype=torch.int32).reshape(1)
    new_tables, new_tokens = _gather(old_tables, num_tokens, parents, refused)
    # From the tail of the first beam on, since entries are read from the last to the first.
    old_entries = old_tables.flip(0).flatten()
    note_changes(allocator, old_entries, -1, refused)
    # What is wrong with the new tables is wrong with the old ones, and counted.
    note_changes(allocator, new_tables.flatten(), 1, torch.zeros_like(refused))
    copied = _find_copies(new_tables, new_tokens, allocator, refused, block_size)
    refused = _verdict(allocator, copied, refused)
    apply_changes(allocator, old_entries, refused)
    unused = push_unused(allocator, old_entries, refused)
    sources, destinations = _take_copies(new_tables, copied, allocator, refused)
    return Reordered(new_tables, new_tokens, sources, destinations, unused, refused)


def _gather(
    block_tables: Tensor, num_tokens: Tensor, parents: Tensor, refused: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the new beams' tables and numbers of tokens; lower `refused` by the parents that are no rows."""
    old_beams, max_blocks = block_tables.shape
    new_tables, new_tokens = parents.new_empty(len(parents), max_blocks), parents.new_empty(len(parents))
    with torch.cuda.device_of(parents):
        _gather_kernel[(len(parents),)](
            block_tables, num_tokens.contiguous(), parents.contiguous(), new_tables, new_tokens, refused,
            old_beams, max_blocks, TILE,
        )  # fmt: skip
    return new_tables, new_tokens


def _find_copies(
    new_tables: Tensor, new_tokens: Tensor, allocator: BlockAllocator, refused: Tensor, block_size: int
) -> Tensor:
    """Return int64 [new_beams]: the entry of the flattened tables that a beam must have copied, or -1."""
    new_beams, max_blocks = new_tables.shape
    copied = torch.full((new_beams,), -1, dtype=torch.int64, device=new_tables.device)
    with torch.cuda.device_of(new_tables):
        _find_copies_kernel[(new_beams,)](
            new_tables, new_tokens, allocator.counts, allocator.changes, refused, copied, max_blocks,
            block_size, TILE,
        )  # fmt: skip
    return copied


def _verdict(allocator: BlockAllocator, copied: Tensor, refused: Tensor) -> Tensor:
    """Return `refused`, or how many blocks the copies lack: they may use those that the old beams give up."""
    # Torch reads the whole pool here, 12 bytes per block, instead of one more kernel that reads the tables.
    fell = (allocator.changes < 0) & (allocator.counts + allocator.changes == 0)
    available = allocator.free_count + (fell & (allocator.retained == 0)).sum()
    missing = ((copied >= 0).sum() - available).clamp(min=0).to(torch.int32)
    return torch.where(refused < 0, refused, missing)


def _take_copies(
    new_tables: Tensor, copied: Tensor, allocator: BlockAllocator, refused: Tensor
) -> tuple[Tensor, Tensor]:
    """Return sources and destinations of the copies, taken from the free stack unless all is refused."""
    sources, destinations = new_tables.new_full((2, len(copied)), -1)
    with torch.cuda.device_of(new_tables):
        _take_copies_kernel[(len(copied),)](
            copied, new_tables, allocator.free_stack, allocator.free_count, allocator.counts,
            sources, destinations, refused, TILE,
        )  # fmt: skip
    allocator.free_count -= ((copied >= 0) & (refused == 0)).sum(dtype=torch.int32)
    return sources, destinations
