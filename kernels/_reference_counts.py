"""Move reference counts on the device, all or nothing: note all changes, judge them, then apply them.

Three steps, one launch each: a step needs what the step before it has done to all entries. The changes are
noted beside the counts, so until the verdict no count and no free block has changed. The allocator's `share`
and `free` consist of these steps, and beam search moves the counts of whole tables with them.

Entries are int32 ids of blocks of the pool, -1 (skipped) or below -1 (wrong), contiguous. `refused` is int32
[1]: 0 where all is well, below 0 for so many wrong entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ._triton import tl, triton

if TYPE_CHECKING:
    from .allocator import BlockAllocator

TILE = 256  # entries that a program works on at once


@triton.jit
def _tile_of_entries(block_ptr, tile, num_entries, TILE: tl.constexpr):
    """Return numbers and blocks of a tile of entries, numbered from the last one on: `free` begins there."""
    entries = tile * TILE + tl.arange(0, TILE)
    blocks = tl.load(block_ptr + num_entries - 1 - entries, mask=entries < num_entries, other=-1)
    return entries, blocks


@triton.jit
def _note_kernel(
    block_ptr, count_ptr, retained_ptr, change_ptr, last_ptr, refused_ptr, num_entries,
    STEP: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Note that the count of a block is to change by STEP for each entry, and lower `refused` by wrong ones.

    No count changes yet. Several entries may give up one block: the last of them, which `last` keeps, says
    later when the block fell to zero.
    """
    entries, blocks = _tile_of_entries(block_ptr, tl.program_id(0), num_entries, TILE)
    named = blocks >= 0
    noted_before = tl.atomic_add(change_ptr + blocks, STEP, mask=named)
    users = tl.load(count_ptr + blocks, mask=named, other=0)
    if STEP < 0:
        wrong = users + noted_before <= 0  # more entries than users: a double free
        tl.atomic_max(last_ptr + blocks, entries, mask=named)
    else:
        wrong = users + tl.load(retained_ptr + blocks, mask=named, other=0) == 0  # a free block
    tl.atomic_add(refused_ptr, -tl.sum(((named & wrong) | (blocks < -1)).to(tl.int32)))


@triton.jit
def _apply_kernel(block_ptr, count_ptr, change_ptr, refused_ptr, num_entries, TILE: tl.constexpr):
    """Add to each count the change noted for it, unless `refused` says no; leave no change noted."""
    _, blocks = _tile_of_entries(block_ptr, tl.program_id(0), num_entries, TILE)
    # Of the entries that name a block, one gets its whole change, and the others get 0.
    change = tl.atomic_xchg(change_ptr + blocks, 0, mask=blocks >= 0)
    change = tl.where(tl.load(refused_ptr) == 0, change, 0)
    tl.atomic_add(count_ptr + blocks, change, mask=blocks >= 0)


@triton.jit
def _push_kernel(
    block_ptr, count_ptr, retained_ptr, last_ptr, stack_ptr, free_count_ptr, unused_ptr, refused_ptr,
    num_entries, TILE: tl.constexpr,
):  # fmt: skip
    """List the blocks that fell to zero, and push those that no prefix cache retains, in order of entries.

    One program, because the stack has one order. Leaves -1 in `last` for all blocks.
    """
    num_free, num_unused = tl.load(free_count_ptr), 0
    allowed = tl.load(refused_ptr) == 0
    for tile in range(0, tl.cdiv(num_entries, TILE)):
        entries, blocks = _tile_of_entries(block_ptr, tile, num_entries, TILE)
        last = (blocks >= 0) & (tl.load(last_ptr + blocks, mask=blocks >= 0, other=-1) == entries)
        tl.store(last_ptr + blocks, -1, mask=last)  # an earlier entry that reads -1 isn't the last one either
        users = tl.load(count_ptr + blocks, mask=last, other=1)
        fell = tl.where(allowed, users == 0, False)
        tl.store(unused_ptr + num_unused + tl.cumsum(fell.to(tl.int32)) - 1, blocks, mask=fell)
        num_unused += tl.sum(fell.to(tl.int32))
        pushed = fell & (tl.load(retained_ptr + blocks, mask=fell, other=1) == 0)
        tl.store(stack_ptr + num_free + tl.cumsum(pushed.to(tl.int32)) - 1, blocks, mask=pushed)
        num_free += tl.sum(pushed.to(tl.int32))
    tl.debug_barrier()  # no thread may have this number left to read when one writes it
    tl.store(free_count_ptr, num_free)


def note_changes(pool: BlockAllocator, entries: Tensor, step: int, refused: Tensor) -> None:
    """Note `step` for the count of each block named; lower `refused` by the number of wrong entries."""
    grid = (triton.cdiv(len(entries), TILE),)
    with torch.cuda.device_of(entries):
        _note_kernel[grid](
            entries, pool.counts, pool.retained, pool.changes, pool.last_entry, refused, len(entries),
            step, TILE,
        )  # fmt: skip


def apply_changes(pool: BlockAllocator, entries: Tensor, refused: Tensor) -> None:
    """Apply what was noted for these entries where `refused` is 0; forget it either way."""
    grid = (triton.cdiv(len(entries), TILE),)
    with torch.cuda.device_of(entries):
        _apply_kernel[grid](entries, pool.counts, pool.changes, refused, len(entries), TILE)


def push_unused(pool: BlockAllocator, entries: Tensor, refused: Tensor) -> Tensor:
    """Push the blocks that fell to zero; return them as int32 [entries], in that order, then -1."""
    unused = torch.full_like(entries, -1)
    with torch.cuda.device_of(entries):
        _push_kernel[(1,)](
            entries, pool.counts, pool.retained, pool.last_entry, pool.free_stack, pool.free_count,
            unused, refused, len(entries), TILE,
        )  # fmt: skip
    return unused
