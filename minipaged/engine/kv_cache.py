"""The pool: one tensor that holds the keys and values of all sequences, cut into blocks.

It is block-major, [num_blocks, num_layers, 2, block_size, num_kv_heads, head_dim]: a block is one piece of
memory with the K and V of its tokens for every layer, so that copying or swapping a block moves one piece.
Page: docs/concepts/kv_cache.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from ..errors import InvalidConfigError
from ..kernels.swap import host_pool
from ..reference.kv_cache_size import bytes_per_token
from . import huge_pages


@dataclass(frozen=True)
class KVShape:
    """What one token stores: per layer, a key and a value for every KV head."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def bytes_per_token(self) -> int:
        """2 (K and V) x layers x KV heads x head_dim x bytes per value."""
        return bytes_per_token(self.num_layers, self.num_kv_heads, self.head_dim, self.dtype.itemsize)


@contextmanager
def allocating(what: str) -> Iterator[None]:
    """Turn memory that can't be had into an InvalidConfigError. what: the settings, and what they ask for."""
    try:
        yield
    except (MemoryError, RuntimeError, ValueError) as error:  # NumPy's and torch's, of any device
        raise InvalidConfigError(f"{what}: more memory than can be had") from error


class KVCache:
    """The pool, a host pool to swap to, and for each layer the views of keys and values that kernels take.

    Memory is not cleared: a slot that was never written may hold anything, and no kernel may read it.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        shape: KVShape,
        device: str | torch.device,
        num_host_blocks: int = 0,
    ) -> None:
        self.shape = shape
        self.block_size = block_size
        size = (num_blocks, shape.num_layers, 2, block_size, shape.num_kv_heads, shape.head_dim)
        on_cpu = torch.device(device).type == "cpu"
        with allocating(f"num_blocks or kv_cache_memory: a pool of {num_blocks} blocks"):
            self.pool = (
                huge_pages.empty(size, shape.dtype)
                if on_cpu
                else torch.empty(size, dtype=shape.dtype, device=device)
            )
        with allocating(f"swap_space: a host pool of {num_host_blocks} blocks"):
            self.host_pool = host_pool(self.pool, num_host_blocks) if num_host_blocks else None
        self.layers = [(self.pool[:, i, 0], self.pool[:, i, 1]) for i in range(shape.num_layers)]

    @property
    def num_bytes(self) -> int:
        """Bytes of the pool."""
        return self.pool.numel() * self.pool.element_size()
