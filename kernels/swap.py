"""Swapping's copies: whole blocks between the pool on the GPU and a pool in pinned host memory.

A GPU reads and writes pinned memory by itself, so one launch moves all blocks of a group, many small pieces
in parallel. The kernel is copy-on-write's, which doesn't care where its two pools are.
Twin: reference/swap.py. Lesson: lessons/08_swap_or_recompute. Page: docs/concepts/preemption.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .copy_on_write import checked_pairs, copy_pairs


def swap_blocks(
    source_pool: Tensor,
    destination_pool: Tensor,
    sources: Sequence[int] | Tensor,
    destinations: Sequence[int] | Tensor,
) -> None:
    """Copy block sources[i] of one pool onto block destinations[i] of the other, for each i (section 4.5).

    With a pool on CUDA, one kernel on torch's current stream copies all pairs, and the call does not wait:
    what is launched on that stream later sees the copies, a host that reads `destination_pool` must
    synchronise first, and a pool in host memory must stay alive until then. CPU pools are copied at once.

    Args:
        source_pool, destination_pool: [num_blocks, ...], contiguous, equal in dtype and in all but the number
            of blocks. One on CUDA and the other in pinned host memory (`host_pool` makes one), or both on
            the CPU.
        sources, destinations: block ids of equal number, of their own pool each. A source may serve several
            destinations.

    Raises:
        TypeError: the dtypes differ.
        ValueError: the shapes differ, a pool is not contiguous or not where it must be, the pools overlap,
            the numbers differ, an id is out of range or a destination is named twice. Nothing is copied then.
    """
    _check_pools(source_pool, destination_pool)
    pairs = checked_pairs(sources, destinations, source_pool.shape[0], destination_pool.shape[0])
    copy_pairs(source_pool, destination_pool, pairs)


def host_pool(pool: Tensor, num_blocks: int) -> Tensor:
    """A pool of `num_blocks` blocks like those of `pool`, in host memory; not cleared.

    Pinned where `pool` is on a GPU: torch then takes a power of two of bytes from the system, up to twice as
    many as the pool needs. Raises ValueError unless `num_blocks` is at least 1.
    """
    if num_blocks < 1:
        raise ValueError(f"num_blocks: {num_blocks}, must be at least 1")
    size = (num_blocks, *pool.shape[1:])
    return torch.empty(size, dtype=pool.dtype, device="cpu", pin_memory=pool.is_cuda)


def _check_pools(source_pool: Tensor, destination_pool: Tensor) -> None:
    if source_pool.dtype != destination_pool.dtype:
        raise TypeError(
            f"destination_pool: dtype {destination_pool.dtype}, but source_pool is {source_pool.dtype}"
        )
    if source_pool.shape[1:] != destination_pool.shape[1:]:
        raise ValueError(
            f"destination_pool: blocks of shape {list(destination_pool.shape[1:])}, "
            f"but source_pool has {list(source_pool.shape[1:])}"
        )
    for name, pool in (("source_pool", source_pool), ("destination_pool", destination_pool)):
        if not pool.is_contiguous():
            raise ValueError(f"{name}: strides {pool.stride()}, must be contiguous")
    _check_devices(source_pool, destination_pool)


def _check_devices(source_pool: Tensor, destination_pool: Tensor) -> None:
    """Refuse pools that aren't one on CUDA and one in pinned memory, or two separate ones on the CPU."""
    devices = {source_pool.device.type, destination_pool.device.type}
    if devices == {"cpu"}:
        first, second = sorted((source_pool, destination_pool), key=Tensor.data_ptr)
        if second.data_ptr() < first.data_ptr() + first.nbytes:
            raise ValueError("source_pool and destination_pool overlap: use copy_blocks within a pool")
        return
    if devices != {"cpu", "cuda"}:
        raise ValueError(
            f"source_pool, destination_pool: on {source_pool.device} and {destination_pool.device}, "
            "must be one on CUDA and one on the CPU, or both on the CPU"
        )
    for name, pool in (("source_pool", source_pool), ("destination_pool", destination_pool)):
        if not pool.is_cuda and not pool.is_pinned():
            raise ValueError(f"{name}: must be pinned memory, where the other pool is on CUDA: see host_pool")
