"""Hand out the blocks of the pool on the device: a free stack and reference counts in GPU memory.

Each operation serves a whole batch, takes and gives blocks in the order of its twin, and never waits for the
host: a tensor says whether it was possible. A prefix sum says which sequence takes which block, and atomics
count who uses it. Twin: reference/allocator.py. Page: docs/concepts/allocator.md.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ._checks import check_vector
from ._reference_counts import TILE, apply_changes, note_changes, push_unused
from ._tables import check_pool_size, check_requests, known_blocks
from ._triton import require_launch, tl, triton


@triton.jit(
    do_not_specialize=["batch", "max_blocks"], do_not_specialize_on_alignment=["taken_ptr", "top_ptr"]
)
def _plan_kernel(
    request_ptr, length_ptr, free_count_ptr, taken_ptr, top_ptr, missing_ptr, batch, max_blocks,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Decide for all rows at once: how many blocks each takes, and from where on the stack it takes them."""
    rows = tl.arange(0, ROWS)
    in_batch = rows < batch
    requests = tl.load(request_ptr + rows, mask=in_batch, other=0).to(tl.int64)
    lengths = tl.load(length_ptr + rows, mask=in_batch, other=0).to(tl.int64)
    num_free = tl.load(free_count_ptr).to(tl.int64)
    wrong = tl.sum(((requests < 0) | (lengths < 0) | (lengths + requests > max_blocks)).to(tl.int32))
    total = tl.sum(requests)
    taken = tl.where((wrong == 0) & (total <= num_free), requests, 0)
    taken_before = tl.cumsum(taken) - taken
    tl.store(taken_ptr + rows, taken.to(tl.int32), mask=in_batch)
    tl.store(top_ptr + rows, (num_free - 1 - taken_before).to(tl.int32), mask=in_batch)
    tl.store(missing_ptr, tl.where(wrong > 0, -wrong, tl.maximum(total - num_free, 0)).to(tl.int32))


# One compiled kernel for batches of any size up to ROWS.
@triton.jit(do_not_specialize=["row_stride"], do_not_specialize_on_alignment=["taken_ptr", "top_ptr"])
def _take_kernel(
    table_ptr, length_ptr, taken_ptr, top_ptr, stack_ptr, count_ptr, row_stride, column_stride,
    TILE: tl.constexpr,
):  # fmt: skip
    """Take the blocks of one row, from its own top of the stack downwards, and append them to its table."""
    row = tl.program_id(0).to(tl.int64)
    taken, top = tl.load(taken_ptr + row), tl.load(top_ptr + row).to(tl.int64)
    table_ptr += row * row_stride + tl.load(length_ptr + row) * column_stride
    for start in range(0, taken, TILE):
        entries = start + tl.arange(0, TILE).to(tl.int64)
        blocks = tl.load(stack_ptr + top - entries, mask=entries < taken, other=0)
        tl.store(table_ptr + entries * column_stride, blocks, mask=entries < taken)
        tl.store(count_ptr + blocks, 1, mask=entries < taken)


class Freed(NamedTuple):
    """What `BlockAllocator.free` says, on the device."""

    unused: Tensor  # int32 [entries], the blocks that fell to zero in order, then -1
    refused: Tensor  # int32 [1], 0 where it was done


class BlockAllocator:
    """A free stack and one reference count per block (paper sections 4.2 and 4.4), as tensors.

    Operations are ordered by the current stream. Each is all or nothing. It returns int32 [1]: 0 if it was
    done. Otherwise nothing has changed: `allocate` returns how many blocks are missing, or below 0 how many
    rows are wrong; `share` and `free`, which need no block, return how many entries are wrong.
    """

    def __init__(self, num_blocks: int, device: str | torch.device = "cuda") -> None:
        check_pool_size(num_blocks)
        self.num_blocks = num_blocks
        self.free_stack = torch.arange(num_blocks - 1, -1, -1, dtype=torch.int32, device=device)
        self.free_count = torch.tensor([num_blocks], dtype=torch.int32, device=device)
        self.counts = torch.zeros(num_blocks, dtype=torch.int32, device=device)
        self.retained = torch.zeros(num_blocks, dtype=torch.int32, device=device)
        # Scratch: between operations it holds these values.
        self.changes = torch.zeros(num_blocks, dtype=torch.int32, device=device)
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
        batch, max_blocks = check_requests(num_blocks, block_tables, table_lengths, self.counts.device)
        require_launch(_plan_kernel, block_tables, "block_tables")
        missing = block_tables.new_zeros(1)
        if batch == 0:
            return missing
        taken, tops = block_tables.new_empty(2, batch)
        lengths = table_lengths.contiguous()
        with torch.cuda.device_of(block_tables):
            _plan_kernel[(1,)](
                num_blocks.contiguous(), lengths, self.free_count, taken, tops, missing, batch, max_blocks,
                ROWS=triton.next_power_of_2(batch),
            )  # fmt: skip
            _take_kernel[(batch,)](
                block_tables, lengths, taken, tops, self.free_stack, self.counts, *block_tables.stride(), TILE
            )  # fmt: skip
        table_lengths += taken
        self.free_count -= taken.sum(dtype=torch.int32)
        return missing

    def share(self, blocks: Tensor) -> Tensor:
        """Raise the count of each block by one: one more table names it (fork, or a prefix hit).

        blocks: int32 [entries]; -1 is skipped, a block may occur several times. Returns int32 [1]: how many
        entries are free blocks, or no blocks of this pool.
        """
        blocks, refused = self._checked(blocks)
        note_changes(self, blocks, 1, refused)
        apply_changes(self, blocks, refused)
        return -refused

    def free(self, blocks: Tensor) -> Freed:
        """Lower the count of each block by one, and push those that fall to zero on the stack, tail first.

        blocks: int32 [entries]; -1 is skipped, a block may be named as often as its count says. Refused are
        entries beyond that (a double free), and entries that are no blocks of this pool.
        """
        blocks, refused = self._checked(blocks)
        note_changes(self, blocks, -1, refused)
        apply_changes(self, blocks, refused)
        return Freed(push_unused(self, blocks, refused), -refused)

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

    def _checked(self, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """The entries as the kernels take them, and a verdict to begin with."""
        check_vector("blocks", blocks, self.counts.device)
        require_launch(_plan_kernel, blocks, "blocks")
        return known_blocks(blocks, self.num_blocks), blocks.new_zeros(1)
