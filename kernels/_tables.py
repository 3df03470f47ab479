"""What the allocator and beam search refuse, by name, before a launch; no tensor's values are looked at."""

from __future__ import annotations

import torch
from torch import Tensor


def check_tables(block_tables: Tensor, device: torch.device) -> tuple[int, int]:
    """Refuse anything but int32 [batch, max_blocks] on `device`; return batch and max_blocks."""
    if block_tables.ndim != 2:
        raise ValueError(f"block_tables: shape {list(block_tables.shape)}, must be [batch, max_blocks]")
    if block_tables.dtype != torch.int32:
        raise TypeError(f"block_tables: dtype {block_tables.dtype}, must be torch.int32")
    if block_tables.device != device:
        raise ValueError(f"block_tables: on {block_tables.device}, must be on {device}")
    return block_tables.shape[0], block_tables.shape[1]


def check_vector(name: str, tensor: Tensor, device: torch.device) -> None:
    """Refuse anything but int32 [n] on `device`."""
    if tensor.dtype != torch.int32:
        raise TypeError(f"{name}: dtype {tensor.dtype}, must be torch.int32")
    if tensor.ndim != 1:
        raise ValueError(f"{name}: shape {list(tensor.shape)}, must have one dimension")
    if tensor.device != device:
        raise ValueError(f"{name}: on {tensor.device}, must be on {device}")
