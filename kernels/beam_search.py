"""Move the blocks of many beams at once: gather tables by parent, shift the counts, list the copies.

One launch does for all beams of a batch what the twin does beam by beam, with the same blocks in the same
order. Counts move by the difference: atomics add an entry of a new table and take one of an old table, and
only blocks that end at zero go back on the free stack. Twin: reference/beam_search.py.
Page: docs/concepts/beam_search.md.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ._checks import check_tables, check_vector
from ._triton import require_launch, tl, triton
from .allocator import TILE, BlockAllocator, _push


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

    Several requests may share a launch: their beams are rows of one table. A parent named several times is
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
    old_beams, max_blocks = check_tables(block_tables, allocator.counts.device)
    check_vector("parents", parents, block_tables.device)
    check_vector("num_tokens", num_tokens, block_tables.device)
    if len(num_tokens) != old_beams:
        raise ValueError(
            f"num_tokens: {len(num_tokens)} entries, must be {old_beams} as block_tables has rows"
        )
    if block_size < 1:
        raise ValueError(f"block_size: {block_size}, must be at least 1")
    require_launch(_reorder_kernel, block_tables, "block_tables")
    new_beams = len(parents)
    result = Reordered(
        block_tables=block_tables.new_full((new_beams, max_blocks), -1),
        num_tokens=num_tokens.new_zeros(new_beams),
        sources=parents.new_full((new_beams,), -1),
        destinations=parents.new_full((new_beams,), -1),
        unused=parents.new_full((old_beams * max_blocks,), -1),
        refused=parents.new_zeros(1),
    )
    with torch.cuda.device_of(block_tables):
        _reorder_kernel[(1,)](
            block_tables,
            parents.contiguous(),
            num_tokens.contiguous(),
            *result,
            allocator.counts,
            allocator.retained,
            allocator.last_entry,
            allocator.free_stack,
            allocator.free_count,
            old_beams,
            new_beams,
            max_blocks,
            allocator.num_blocks,
            *block_tables.stride(),
            BLOCK_SIZE=block_size,
            ROWS=max(16, triton.next_power_of_2(new_beams)),
            TILE=TILE,
        )
    return result


@triton.jit
def _old_entries(
    start,
    table_ptr,
    tokens_ptr,
    num_rows,
    max_blocks,
    row_stride,
    column_stride,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
):
    """A tile of the old tables' entries, row by row from the tail on: numbers, blocks, which are there."""
    entries = start + tl.arange(0, TILE)
    rows, columns = (entries // max_blocks).to(tl.int64), max_blocks - 1 - entries % max_blocks
    tokens = tl.load(tokens_ptr + rows, mask=rows < num_rows, other=0)
    there = columns < (tokens + BLOCK_SIZE - 1) // BLOCK_SIZE
    blocks = tl.load(
        table_ptr + rows * row_stride + columns.to(tl.int64) * column_stride, mask=there, other=0
    )
    return entries, blocks, there


@triton.jit
def _count_new(
    step,
    table_ptr,
    parent_ptr,
    tokens_ptr,
    new_table_ptr,
    count_ptr,
    num_rows,
    max_blocks,
    row_stride,
    column_stride,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Write the new tables and add `step` to the count of each of their blocks."""
    for start in range(0, num_rows * max_blocks, TILE):
        entries = start + tl.arange(0, TILE)
        rows, columns = entries // max_blocks, entries % max_blocks
        parents = tl.load(parent_ptr + rows, mask=rows < num_rows, other=0).to(tl.int64)
        tokens = tl.load(tokens_ptr + parents, mask=rows < num_rows, other=0)
        there = columns < (tokens + BLOCK_SIZE - 1) // BLOCK_SIZE
        places = table_ptr + parents * row_stride + columns.to(tl.int64) * column_stride
        blocks = tl.load(places, mask=there, other=0)
        tl.store(new_table_ptr + entries, blocks, mask=there)
        tl.atomic_add(count_ptr + blocks, step, mask=there)


@triton.jit
def _reorder_kernel(
    table_ptr,
    parent_ptr,
    tokens_ptr,
    new_table_ptr,
    new_tokens_ptr,
    source_ptr,
    destination_ptr,
    unused_ptr,
    refused_ptr,
    count_ptr,
    retained_ptr,
    last_ptr,
    stack_ptr,
    free_count_ptr,
    old_beams,
    new_beams,
    max_blocks,
    num_blocks,
    row_stride,
    column_stride,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
):
    """One program: free blocks have one order, and whether all fits is known only when all are counted."""
    rows = tl.arange(0, ROWS)
    here = rows < new_beams
    parents = tl.load(parent_ptr + rows, mask=here, other=0)
    wrong = tl.sum((here & ((parents < 0) | (parents >= old_beams))).to(tl.int32))
    num_old = old_beams * max_blocks
    for start in range(0, old_beams, TILE):
        beams = start + tl.arange(0, TILE)
        tokens = tl.load(tokens_ptr + beams, mask=beams < old_beams, other=0)
        wrong += tl.sum(((tokens < 0) | (tokens > max_blocks * BLOCK_SIZE)).to(tl.int32))
    for start in range(0, num_old, TILE):
        entries, blocks, there = _old_entries(
            start, table_ptr, tokens_ptr, old_beams, max_blocks, row_stride, column_stride, BLOCK_SIZE, TILE
        )
        wrong += tl.sum((there & ((blocks < 0) | (blocks >= num_blocks))).to(tl.int32))
    if wrong > 0:
        tl.store(refused_ptr, -wrong)
        return

    # 1. Count the old tables' entries down, of which there can't be more than the counts say, and the new
    #    ones' up.
    for start in range(0, num_old, TILE):
        entries, blocks, there = _old_entries(
            start, table_ptr, tokens_ptr, old_beams, max_blocks, row_stride, column_stride, BLOCK_SIZE, TILE
        )
        tl.atomic_add(count_ptr + blocks, -1, mask=there)
        tl.atomic_max(last_ptr + blocks, entries, mask=there)
    tl.debug_barrier()
    excess = 0
    for start in range(0, num_old, TILE):
        entries, blocks, there = _old_entries(
            start, table_ptr, tokens_ptr, old_beams, max_blocks, row_stride, column_stride, BLOCK_SIZE, TILE
        )
        last = there & (tl.load(last_ptr + blocks, mask=there, other=-1) == entries)
        excess += tl.sum(tl.maximum(-tl.load(count_ptr + blocks, mask=last, other=0), 0))
    tl.debug_barrier()
    _count_new(
        1, table_ptr, parent_ptr, tokens_ptr, new_table_ptr, count_ptr,
        new_beams, max_blocks, row_stride, column_stride, BLOCK_SIZE, TILE,
    )  # fmt: skip
    tokens = tl.load(tokens_ptr + parents, mask=here, other=0)
    tl.store(new_tokens_ptr + rows, tokens, mask=here)
    tl.debug_barrier()

    # 2. Which last blocks must be copied: all but one writer of each, and that one too if others read it.
    writes = here & (tokens % BLOCK_SIZE > 0)
    last_entries = rows * max_blocks + tokens // BLOCK_SIZE
    last_blocks = tl.load(new_table_ptr + last_entries, mask=writes, other=-1)
    copied_before = tl.zeros_like(rows)
    for row in range(0, new_beams):
        writer_tokens = tl.load(new_tokens_ptr + row)
        is_writer = writer_tokens % BLOCK_SIZE > 0
        block = tl.load(
            new_table_ptr + row * max_blocks + writer_tokens // BLOCK_SIZE, mask=is_writer, other=-2
        )
        copied_before += ((last_blocks == block) & (rows > row)).to(tl.int32)
    users = tl.load(count_ptr + last_blocks, mask=writes, other=0) - copied_before
    copies = writes & (users > 1)
    needed = tl.sum(copies.to(tl.int32))

    # 3. Blocks that nobody names any more, at the last of the entries that named them.
    dropped = 0
    for start in range(0, num_old, TILE):
        entries, blocks, there = _old_entries(
            start, table_ptr, tokens_ptr, old_beams, max_blocks, row_stride, column_stride, BLOCK_SIZE, TILE
        )
        fell = there & (tl.load(last_ptr + blocks, mask=there, other=-1) == entries)
        fell = fell & (tl.load(count_ptr + blocks, mask=fell, other=1) == 0)
        dropped += tl.sum((fell & (tl.load(retained_ptr + blocks, mask=fell, other=1) == 0)).to(tl.int32))
    num_free = tl.load(free_count_ptr)
    refused = tl.where(excess > 0, -excess, tl.maximum(needed - num_free - dropped, 0))
    num_unused = 0
    for start in range(0, tl.where(refused == 0, num_old, 0), TILE):
        entries, blocks, there = _old_entries(
            start, table_ptr, tokens_ptr, old_beams, max_blocks, row_stride, column_stride, BLOCK_SIZE, TILE
        )
        fell = there & (tl.load(last_ptr + blocks, mask=there, other=-1) == entries)
        fell = fell & (tl.load(count_ptr + blocks, mask=fell, other=1) == 0)
        num_free, num_unused = _push(blocks, fell, retained_ptr, stack_ptr, num_free, unused_ptr, num_unused)
    tl.debug_barrier()

    # 4. Take the destinations from the stack, repoint the tables, one user fewer for each source.
    copies = copies & (rows < tl.where(refused == 0, ROWS, 0))
    rank = tl.cumsum(copies.to(tl.int32)) - 1
    destinations = tl.load(stack_ptr + num_free - 1 - rank, mask=copies, other=-1)
    tl.store(new_table_ptr + last_entries, destinations, mask=copies)
    tl.store(source_ptr + rank, last_blocks, mask=copies)
    tl.store(destination_ptr + rank, destinations, mask=copies)
    tl.atomic_add(count_ptr + last_blocks, -1, mask=copies)
    tl.store(count_ptr + destinations, 1, mask=copies)
    tl.store(free_count_ptr, num_free - tl.sum(copies.to(tl.int32)))
    tl.store(refused_ptr, refused)

    # 5. Leave the scratch as it was; where it didn't fit, the counts too.
    for start in range(0, num_old, TILE):
        _, blocks, there = _old_entries(
            start, table_ptr, tokens_ptr, old_beams, max_blocks, row_stride, column_stride, BLOCK_SIZE, TILE
        )
        tl.store(last_ptr + blocks, -1, mask=there)
    for start in range(0, tl.where(refused != 0, num_old, 0), TILE):
        _, blocks, there = _old_entries(
            start, table_ptr, tokens_ptr, old_beams, max_blocks, row_stride, column_stride, BLOCK_SIZE, TILE
        )
        tl.atomic_add(count_ptr + blocks, 1, mask=there)
    if refused != 0:
        _count_new(
            -1, table_ptr, parent_ptr, tokens_ptr, new_table_ptr, count_ptr,
            new_beams, max_blocks, row_stride, column_stride, BLOCK_SIZE, TILE,
        )  # fmt: skip
