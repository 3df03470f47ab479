"""What the allocator and beam search refuse, by name, before a launch, and how they read what they are given.

No value of a tensor reaches the host here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ._checks import check_tables, check_vector


def check_pool_size(num_blocks: int) -> None:
    """Refuse anything but a positive integer."""
    if not isinstance(num_blocks, int) or isinstance(num_blocks, bool) or num_blocks < 1:
        raise ValueError(f"num_blocks must be a positive integer, got {num_blocks!r}")


def check_requests(
    num_blocks: Tensor, block_tables: Tensor, table_lengths: Tensor, device: torch.device
) -> tuple[int, int]:
    """Refuse what `BlockAllocator.allocate` can't take; return batch and max_blocks."""
    batch, max_blocks = check_tables(block_tables, device)
    for name, tensor in (("num_blocks", num_blocks), ("table_lengths", table_lengths)):
        check_vector(name, tensor, device)
        if len(tensor) != batch:
            raise ValueError(f"{name}: {len(tensor)} entries, must be {batch} as block_tables has rows")
    return batch, max_blocks


def check_beams(
    block_tables: Tensor, parents: Tensor, num_tokens: Tensor, block_size: int, device: torch.device
) -> None:
    """Refuse what `reorder_beams` can't take."""
    old_beams, _ = check_tables(block_tables, device)
    check_vector("parents", parents, device)
    check_vector("num_tokens", num_tokens, device)
    if len(num_tokens) != old_beams:
        raise ValueError(
            f"num_tokens: {len(num_tokens)} entries, must be {old_beams} as block_tables has rows"
        )
    if block_size < 1:
        raise ValueError(f"block_size: {block_size}, must be at least 1")


def known_blocks(blocks: Tensor, num_blocks: int) -> Tensor:
    """The same ids, contiguous, but -2 for those beyond the pool: no kernel gets to see an id of no block."""
    return torch.where(blocks < num_blocks, blocks, -2).contiguous()


def used_entries(block_tables: Tensor, num_tokens: Tensor, num_blocks: int, block_size: int) -> Tensor:
    """The tables, contiguous, with -1 past their tokens, and before that -2 for what is no block."""
    max_blocks = block_tables.shape[1]
    columns = torch.arange(max_blocks, device=block_tables.device)
    used = columns * block_size < num_tokens[:, None]
    known = (block_tables >= 0) & (block_tables < num_blocks)
    return torch.where(used, torch.where(known, block_tables, -2), -1).contiguous()
