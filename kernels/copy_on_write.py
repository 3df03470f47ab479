"""Copy-on-write's copies: whole blocks of the pool, many (source, destination) pairs in one launch.

A block is one contiguous piece of memory with the K and V of every layer, so a copy needs no layout: the
Numba kernel moves words of bytes. Twin: reference/copy_on_write.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from numba import cuda
from torch import Tensor

# Numba loads at most 8 bytes at once; torch has no unsigned words that it can view any tensor as.
_WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}
_THREADS = 256


def copy_blocks(pool: Tensor, sources: Sequence[int] | Tensor, destinations: Sequence[int] | Tensor) -> None:
    """Copy block sources[i] of the pool onto block destinations[i], for each i, in place (paper section 4.4).

    On CUDA tensors one kernel on torch's current stream copies all pairs; it reads no block that it writes.

    Args:
        pool: [num_blocks, ...], any dtype, contiguous.
        sources, destinations: block ids of equal number. A source may serve several destinations.

    Raises:
        ValueError: the numbers differ, an id is out of range, a block is named twice as a destination or is
            both source and destination, or the pool is not contiguous. Nothing is copied then.
    """
    if not pool.is_contiguous():
        raise ValueError(f"pool: strides {pool.stride()}, must be contiguous")
    pairs = _pairs(pool.shape[0], sources, destinations)
    if not pairs:
        return
    if pool.is_cuda and torch.version.hip is None:  # Numba knows no ROCm: there torch copies, as on the CPU
        with torch.cuda.device_of(pool):
            stream = cuda.external_stream(torch.cuda.current_stream().cuda_stream)
            on_device = torch.tensor(pairs, dtype=torch.int64, device=pool.device)
            # sync=False: Numba would wait for the whole device, and one stream keeps the order anyway.
            words, ids = (cuda.as_cuda_array(tensor, sync=False) for tensor in (as_words(pool), on_device))
            launch_copy_blocks(words, ids, stream=stream)
        return
    for source, destination in pairs:
        pool[destination].copy_(pool[source])


def as_words(pool: Tensor) -> Tensor:
    """The pool's memory as [num_blocks, words], in the widest words that divide a block and its address."""
    rows = pool.view(torch.int8).view(pool.shape[0], -1)
    width = next(width for width in _WORDS if rows.shape[1] % width == 0 and rows.data_ptr() % width == 0)
    return rows.view(_WORDS[width])


def launch_copy_blocks(words: Any, pairs: Any, stream: Any = 0) -> None:
    """`copy_blocks` by its kernel: words [num_blocks, words] and int64 pairs [n, 2], unchecked.

    Arrays that Numba takes: device arrays, or NumPy arrays in its simulator (NUMBA_ENABLE_CUDASIM=1).
    """
    threads = min(_THREADS, words.shape[1])
    # A few words a thread: enough blocks of threads to fill a GPU, few enough to start fast.
    chunks = max(1, words.shape[1] // (threads * 4))
    _copy_kernel[(pairs.shape[0], min(chunks, 65535)), threads, stream](words, pairs)


@cuda.jit
def _copy_kernel(words, pairs):  # type: ignore[no-untyped-def]
    source = pairs[cuda.blockIdx.x, 0]
    destination = pairs[cuda.blockIdx.x, 1]
    first = cuda.blockIdx.y * cuda.blockDim.x + cuda.threadIdx.x
    for word in range(first, words.shape[1], cuda.gridDim.y * cuda.blockDim.x):
        words[destination, word] = words[source, word]


def _pairs(
    num_blocks: int, sources: Sequence[int] | Tensor, destinations: Sequence[int] | Tensor
) -> list[tuple[int, int]]:
    """The pairs as host integers, checked."""
    ids = [block.tolist() if isinstance(block, Tensor) else list(block) for block in (sources, destinations)]
    if len(ids[0]) != len(ids[1]):
        raise ValueError(f"sources, destinations: {len(ids[0])} and {len(ids[1])} blocks, must be as many")
    for name, blocks in zip(("sources", "destinations"), ids, strict=True):
        for block in blocks:
            if not 0 <= block < num_blocks:
                raise ValueError(f"{name}: block {block}, the pool has blocks 0 to {num_blocks - 1}")
    # Pairs are copied in no order, so the result must not depend on one.
    seen = set(ids[0])
    for block in ids[1]:
        if block in seen:
            other = "a source too" if block in ids[0] else "named twice"
            raise ValueError(
                f"destinations: block {block} is {other}, the copies would depend on their order"
            )
        seen.add(block)
    return list(zip(*ids, strict=True))
