"""Hand out the blocks of the pool on the device: a free stack and reference counts in GPU memory.

Each operation is one launch for a whole batch, takes and gives blocks in the order of its twin, and never
waits for the host: whether it was possible, it tells in a tensor. Prefix sums say who takes which block,
atomics count who uses it. Twin: reference/allocator.py. Page: docs/concepts/allocator.md.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ._checks import check_tables, check_vector
from ._triton import require_launch, tl, triton

TILE = 256  # entries that a program works on at a time


class Freed(NamedTuple):
    """What `BlockAllocator.free` says, on the device."""

    unused: Tensor  # int32 [entries], the blocks that fell to zero in order, then -1
    refused: Tensor  # int32 [1], 0 where it was done


class BlockAllocator:
    """A free stack and one reference count a block (paper sections 4.2 and 4.4), as tensors.

    Operations are ordered by the current stream. Each is all or nothing: it returns int32 [1], 0 where it
    was done; anything else says what stood in the way, and that nothing has changed.
    """

    def __init__(self, num_blocks: int, device: str | torch.device = "cuda") -> None:
        if not isinstance(num_blocks, int) or isinstance(num_blocks, bool) or num_blocks < 1:
            raise ValueError(f"num_blocks must be a positive integer, got {num_blocks!r}")
        self.num_blocks = num_blocks
        self.free_stack = torch.arange(num_blocks - 1, -1, -1, dtype=torch.int32, device=device)
        self.free_count = torch.tensor([num_blocks], dtype=torch.int32, device=device)
        self.counts = torch.zeros(num_blocks, dtype=torch.int32, device=device)
        self.retained = torch.zeros(num_blocks, dtype=torch.int32, device=device)
        # Scratch: between launches it holds these values.
        self.ticket = torch.zeros(1, dtype=torch.int32, device=device)
        self.last_entry = torch.full((num_blocks,), -1, dtype=torch.int32, device=device)

    @property
    def num_free(self) -> int:
        """Blocks on the free stack. Waits for the device, as every property and `free_order` do."""
        return int(self.free_count)

    @property
    def num_in_use(self) -> int:
        """Blocks with a count of one or more."""
        return int((self.counts > 0).sum())

    @property
    def num_cached(self) -> int:
        """Blocks with a count of zero that `retain` keeps off the free stack."""
        return self.num_blocks - self.num_free - self.num_in_use

    def free_order(self) -> list[int]:
        """The free blocks in the order in which `allocate` will take them."""
        return self.free_stack[: self.num_free].flip(0).tolist()

    def allocate(self, num_blocks: Tensor, block_tables: Tensor, table_lengths: Tensor) -> Tensor:
        """Append num_blocks[i] free blocks to row i of the tables, each with a count of one, for all rows.

        Args:
            num_blocks: int32 [batch], what each sequence asks for.
            block_tables: int32 [batch, max_blocks], any strides; row i is written from table_lengths[i] on.
            table_lengths: int32 [batch], entries of each table that are taken; raised by num_blocks.

        Returns:
            int32 [1]. Above 0: so many blocks are missing. Below 0: for so many rows num_blocks is negative
            or goes beyond the table.
        """
        batch, max_blocks = check_tables(block_tables, self.counts.device)
        for name, tensor in (("num_blocks", num_blocks), ("table_lengths", table_lengths)):
            check_vector(name, tensor, self.counts.device)
            if len(tensor) != batch:
                raise ValueError(f"{name}: {len(tensor)} entries, must be {batch} as block_tables has rows")
        require_launch(_allocate_kernel, block_tables, "block_tables")
        missing = torch.zeros(1, dtype=torch.int32, device=block_tables.device)
        if batch:
            with torch.cuda.device_of(missing):
                _allocate_kernel[(batch,)](
                    num_blocks,
                    block_tables,
                    table_lengths,
                    self.free_stack,
                    self.free_count,
                    self.counts,
                    self.ticket,
                    missing,
                    batch,
                    max_blocks,
                    num_blocks.stride(0),
                    table_lengths.stride(0),
                    *block_tables.stride(),
                    ROWS=triton.next_power_of_2(batch),
                    TILE=TILE,
                )
        return missing

    def share(self, blocks: Tensor) -> Tensor:
        """Raise the count of each block by one: one more table names it (fork, or a prefix hit).

        blocks: int32 [entries]; -1 is skipped, a block may occur several times. Returns int32 [1]: how many
        entries are free blocks, or no blocks of this pool.
        """
        check_vector("blocks", blocks, self.counts.device)
        require_launch(_allocate_kernel, blocks, "blocks")
        refused = torch.zeros(1, dtype=torch.int32, device=blocks.device)
        with torch.cuda.device_of(blocks):
            _share_kernel[(1,)](
                blocks,
                self.counts,
                self.retained,
                refused,
                len(blocks),
                self.num_blocks,
                blocks.stride(0),
                TILE,
            )
        return refused

    def free(self, blocks: Tensor) -> Freed:
        """Lower the count of each block by one, and push those that fall to zero on the stack, tail first.

        blocks: int32 [entries]; -1 is skipped, a block may be named as often as its count says. Refused are
        entries beyond that (a double free), and entries that are no blocks of this pool.
        """
        check_vector("blocks", blocks, self.counts.device)
        require_launch(_allocate_kernel, blocks, "blocks")
        unused = torch.full((len(blocks),), -1, dtype=torch.int32, device=blocks.device)
        refused = torch.zeros(1, dtype=torch.int32, device=blocks.device)
        with torch.cuda.device_of(blocks):
            _free_kernel[(1,)](
                blocks,
                self.counts,
                self.retained,
                self.last_entry,
                self.free_stack,
                self.free_count,
                unused,
                refused,
                len(blocks),
                self.num_blocks,
                blocks.stride(0),
                TILE,
            )
        return Freed(unused, refused)

    def retain(self, block: int) -> None:
        """Keep `block` off the free stack when its count falls to zero: a prefix cache asks for it."""
        if self.reference_count(block) == 0:
            raise ValueError(f"block {block} is not in use: only a block in use can be retained")
        if self.retained[block]:
            raise ValueError(f"block {block} is retained already")
        self.retained[block] = 1

    def release(self, block: int) -> None:
        """Undo `retain`. A block whose count is zero goes back on the free stack at once."""
        if not 0 <= block < self.num_blocks or not self.retained[block]:
            raise ValueError(f"block {block} is not retained")
        self.retained[block] = 0
        if self.counts[block] == 0:
            self.free_stack[self.num_free] = block
            self.free_count += 1

    def reference_count(self, block: int) -> int:
        """How many live block-table entries name `block`."""
        if not 0 <= block < self.num_blocks:
            raise ValueError(f"block {block} is not one of the {self.num_blocks} blocks of this pool")
        return int(self.counts[block])


@triton.jit
def _allocate_kernel(
    request_ptr,
    table_ptr,
    length_ptr,
    stack_ptr,
    free_count_ptr,
    count_ptr,
    ticket_ptr,
    missing_ptr,
    batch,
    max_blocks,
    request_stride,
    length_stride,
    table_row_stride,
    table_column_stride,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
):
    """One program a sequence. All of them see the same requests, so all come to the same verdict."""
    row = tl.program_id(0).to(tl.int64)
    rows = tl.arange(0, ROWS)
    here = rows < batch
    requests = tl.load(request_ptr + rows * request_stride, mask=here, other=0).to(tl.int64)
    lengths = tl.load(length_ptr + rows * length_stride, mask=here, other=0).to(tl.int64)
    wrong = tl.sum(((requests < 0) | (lengths < 0) | (lengths + requests > max_blocks)).to(tl.int32))
    total = tl.sum(requests)
    num_free = tl.load(free_count_ptr).to(tl.int64)
    possible = (wrong == 0) & (total <= num_free)
    taken_before = tl.sum(tl.where(rows < row, requests, 0))
    mine = tl.where(possible, tl.sum(tl.where(rows == row, requests, 0)), 0)
    table_ptr += row * table_row_stride + tl.sum(tl.where(rows == row, lengths, 0)) * table_column_stride
    for start in range(0, mine, TILE):
        entry = start + tl.arange(0, TILE).to(tl.int64)
        inside = entry < mine
        blocks = tl.load(stack_ptr + num_free - 1 - taken_before - entry, mask=inside, other=0)
        tl.store(table_ptr + entry * table_column_stride, blocks, mask=inside)
        tl.store(count_ptr + blocks, 1, mask=inside)
    # Others may still have to read how many are free: the program that finishes last writes it. The barrier
    # is for this program's own threads: none may have anything left to read when the ticket is taken.
    tl.debug_barrier()
    if tl.atomic_add(ticket_ptr, 1) == tl.num_programs(0) - 1:
        tl.store(ticket_ptr, 0)
        tl.store(missing_ptr, tl.where(wrong > 0, -wrong, tl.maximum(total - num_free, 0)).to(tl.int32))
        taken = tl.where(possible, requests, 0)
        tl.store(free_count_ptr, (num_free - tl.sum(taken)).to(tl.int32))
        tl.store(length_ptr + rows * length_stride, (lengths + taken).to(tl.int32), mask=here)


@triton.jit
def _load_entries(block_ptr, start, num_entries, num_blocks, stride, TILE: tl.constexpr):
    """The block ids of a tile of entries, and which of them name a block. Outside there is -1."""
    entries = start + tl.arange(0, TILE).to(tl.int64)
    blocks = tl.load(block_ptr + entries * stride, mask=entries < num_entries, other=-1)
    return blocks, (blocks >= 0) & (blocks < num_blocks)


@triton.jit
def _push(blocks, chosen, retained_ptr, stack_ptr, num_free, unused_ptr, num_unused):
    """List the chosen blocks as unused, push those that are not retained; return both new lengths."""
    tl.store(unused_ptr + num_unused + tl.cumsum(chosen.to(tl.int32)) - 1, blocks, mask=chosen)
    pushed = chosen & (tl.load(retained_ptr + blocks, mask=chosen, other=1) == 0)
    tl.store(stack_ptr + num_free + tl.cumsum(pushed.to(tl.int32)) - 1, blocks, mask=pushed)
    return num_free + tl.sum(pushed.to(tl.int32)), num_unused + tl.sum(chosen.to(tl.int32))


@triton.jit
def _share_kernel(
    block_ptr, count_ptr, retained_ptr, refused_ptr, num_entries, num_blocks, stride, TILE: tl.constexpr
):
    refused = 0
    for start in range(0, num_entries, TILE):
        blocks, named = _load_entries(block_ptr, start, num_entries, num_blocks, stride, TILE)
        users = tl.load(count_ptr + blocks, mask=named, other=1)
        users += tl.load(retained_ptr + blocks, mask=named, other=0)
        refused += tl.sum(((blocks < -1) | (blocks >= num_blocks) | (users == 0)).to(tl.int32))
    tl.debug_barrier()  # all have read before any writes
    for start in range(0, tl.where(refused == 0, num_entries, 0), TILE):
        blocks, named = _load_entries(block_ptr, start, num_entries, num_blocks, stride, TILE)
        tl.atomic_add(count_ptr + blocks, 1, mask=named)
    tl.store(refused_ptr, refused)


@triton.jit
def _free_kernel(
    block_ptr,
    count_ptr,
    retained_ptr,
    last_ptr,
    stack_ptr,
    free_count_ptr,
    unused_ptr,
    refused_ptr,
    num_entries,
    num_blocks,
    stride,
    TILE: tl.constexpr,
):
    """One program, since the stack has one order. A block may be named by several entries at once: atomics
    sum them up, and its last entry, the one that the others left in `last_ptr`, stands for it afterwards."""
    block_ptr += tl.cast(num_entries - 1, tl.int64) * stride  # from the tail on
    refused = 0
    for start in range(0, num_entries, TILE):
        blocks, named = _load_entries(block_ptr, start, num_entries, num_blocks, -stride, TILE)
        refused += tl.sum(((blocks < -1) | (blocks >= num_blocks)).to(tl.int32))
        tl.atomic_add(count_ptr + blocks, -1, mask=named)
        tl.atomic_max(last_ptr + blocks, start + tl.arange(0, TILE), mask=named)
    tl.debug_barrier()  # all entries are counted
    for start in range(0, num_entries, TILE):
        blocks, named = _load_entries(block_ptr, start, num_entries, num_blocks, -stride, TILE)
        stands = named & (tl.load(last_ptr + blocks, mask=named, other=-1) == start + tl.arange(0, TILE))
        refused += tl.sum(tl.maximum(-tl.load(count_ptr + blocks, mask=stands, other=0), 0))
    num_free, num_unused = tl.load(free_count_ptr), 0
    for start in range(0, tl.where(refused == 0, num_entries, 0), TILE):
        blocks, named = _load_entries(block_ptr, start, num_entries, num_blocks, -stride, TILE)
        stands = named & (tl.load(last_ptr + blocks, mask=named, other=-1) == start + tl.arange(0, TILE))
        fell = stands & (tl.load(count_ptr + blocks, mask=stands, other=1) == 0)
        num_free, num_unused = _push(blocks, fell, retained_ptr, stack_ptr, num_free, unused_ptr, num_unused)
    tl.debug_barrier()  # nobody needs `last_ptr` any more
    for start in range(0, num_entries, TILE):
        blocks, named = _load_entries(block_ptr, start, num_entries, num_blocks, -stride, TILE)
        tl.store(last_ptr + blocks, -1, mask=named)
    for start in range(0, tl.where(refused > 0, num_entries, 0), TILE):  # as if nothing had been
        blocks, named = _load_entries(block_ptr, start, num_entries, num_blocks, -stride, TILE)
        tl.atomic_add(count_ptr + blocks, 1, mask=named)
    tl.store(free_count_ptr, num_free)
    tl.store(refused_ptr, refused)
