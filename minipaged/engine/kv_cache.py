"""The pool: one tensor that holds the keys and values of all sequences, cut into blocks.

It is block-major, [num_blocks, num_layers, 2, block_size, num_kv_heads, head_dim]: a block is one piece of
memory with the K and V of its tokens for every layer, so that copying or swapping a block moves one piece.
This file also decides how many blocks the pool has. Page: docs/concepts/kv_cache.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from ..config import LARGEST, EngineConfig, parse_bytes
from ..errors import InvalidConfigError
from ..kernels.swap import host_pool
from ..models import huge_pages
from ..reference.kv_cache_size import blocks_that_fit, bytes_per_token
from ..sampling_params import shown

DEFAULT_CPU_POOL = 1 << 30  # bytes


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
        size = (num_blocks, shape.num_layers, 2, block_size, shape.num_kv_heads, shape.head_dim)
        on_cpu = torch.device(device).type == "cpu"
        with allocating(f"num_blocks or kv_cache_memory: a pool of {num_blocks} blocks"):
            self.pool = (
                huge_pages.empty(size, shape.dtype)
                if on_cpu
                else torch.empty(size, dtype=shape.dtype, device=device)
            )
        with allocating(f"swap_space: a host pool of {num_host_blocks} blocks"):
            self.host_pool = host_pool(self.pool, num_host_blocks) if num_host_blocks else self.pool[:0]
        self.layers = [(self.pool[:, i, 0], self.pool[:, i, 1]) for i in range(shape.num_layers)]

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self.pool.shape[3]

    @cached_property
    def flat_layers(self) -> list[tuple[Any, Any]]:
        """The views of `layers` as the CPU's compiled code takes them."""
        from ..kernels._cpu_arguments import as_cache  # Numba, which a GPU doesn't need

        return [(as_cache(keys), as_cache(values)) for keys, values in self.layers]

    @property
    def num_bytes(self) -> int:
        """Bytes of the pool."""
        return self.pool.numel() * self.pool.element_size()


def num_pool_blocks(
    config: EngineConfig, shape: KVShape, most_useful: int, spare_gpu_memory: Callable[[], int] | None
) -> int:
    """How many blocks the pool gets: `num_blocks`, else `kv_cache_memory`, else what the memory allows.

    most_useful: the blocks that a full batch of the longest requests fills. What the memory allows is cut to
    that number; the two settings are not.
    spare_gpu_memory: asked for the bytes that a GPU has left; None on a CPU. Raises InvalidConfigError.
    """
    if config.num_blocks is not None:
        return config.num_blocks
    if config.kv_cache_memory is not None:
        return _blocks_in("kv_cache_memory", config.kv_cache_memory, config.block_size, shape)
    memory = spare_gpu_memory() if spare_gpu_memory else DEFAULT_CPU_POOL
    num_blocks = blocks_that_fit(memory, config.block_size, shape.bytes_per_token)
    if num_blocks < 1:
        raise InvalidConfigError(
            f"no memory is left for a pool: gpu_memory_utilization={config.gpu_memory_utilization} leaves "
            f"{max(memory, 0)} bytes, a block takes {config.block_size * shape.bytes_per_token} bytes"
        )
    return min(num_blocks, most_useful)


def num_host_blocks(config: EngineConfig, shape: KVShape) -> int:
    """How many blocks `swap_space` holds; 0 where nothing is swapped."""
    if config.preemption_mode != "swap":
        return 0
    return _blocks_in("swap_space", config.swap_space, config.block_size, shape)


def _blocks_in(name: str, size: int | str, block_size: int, shape: KVShape) -> int:
    """How many blocks the bytes of a setting hold. Raises InvalidConfigError for none and for too many."""
    num_blocks = blocks_that_fit(parse_bytes(name, size), block_size, shape.bytes_per_token)
    if num_blocks == 0:
        raise InvalidConfigError(
            f"{name}={shown(size)} does not hold one block: a block of {block_size} tokens of this "
            f"model takes {block_size * shape.bytes_per_token} bytes"
        )
    if num_blocks > LARGEST:
        raise InvalidConfigError(
            f"{name}={shown(size)} holds {shown(num_blocks)} blocks, at most {LARGEST} can be used"
        )
    return num_blocks
