"""Copy-on-write's copies: whole blocks of the pool, many (source, destination) pairs in one launch.

A block is one contiguous piece of memory with the K and V of every layer, so a copy needs no layout: the
Numba kernel moves words of bytes. kernels/swap.py launches the same kernel between two pools.
Twin: reference/copy_on_write.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import index
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
    pairs = checked_pairs(sources, destinations, pool.shape[0], pool.shape[0])
    # Pairs are copied in no order, so the result must not depend on one.
    if both := {source for source, _ in pairs} & {destination for _, destination in pairs}:
        raise ValueError(
            f"destinations: block {min(both)} is a source too, the copies would depend on their order"
        )
    copy_pairs(pool, pool, pairs)


def copy_pairs(source_pool: Tensor, destination_pool: Tensor, pairs: list[tuple[int, int]]) -> None:
    """Copy checked (source, destination) pairs: one launch on torch's current stream, or torch on the CPU.

    The pools are contiguous [num_blocks, ...] with equal blocks, or one and the same. Where one of two is on
    CUDA, the other is in pinned host memory, which a GPU reaches under the address that the host uses.
    """
    on_device = source_pool if source_pool.is_cuda else destination_pool
    if not on_device.is_cuda or torch.version.hip is not None:  # Numba knows no ROCm
        for source, destination in pairs:
            destination_pool[destination].copy_(source_pool[source], non_blocking=True)
    elif pairs:
        with torch.cuda.device_of(on_device):
            _check_numba_device(on_device.device)
            stream = cuda.external_stream(torch.cuda.current_stream().cuda_stream)
            # From pageable memory torch would wait for all that the stream still has to do.
            ids = torch.tensor(pairs).pin_memory().to(on_device.device, non_blocking=True)
            widest = min(as_words(pool).element_size() for pool in (source_pool, destination_pool))
            words = [_as_device_array(as_words(pool, widest)) for pool in (source_pool, destination_pool)]
            launch_copy_blocks(words[0], words[1], _as_device_array(ids), stream)


def _check_numba_device(device: torch.device) -> None:
    """Raise RuntimeError if Numba would launch on another GPU than `device`, torch's current one.

    Numba takes the CUDA context that torch has made current in this thread. A program that has made one of
    its own with Numba, or pushed one, keeps that context instead.
    """
    number = cuda.get_current_device().id
    if number != device.index:
        raise RuntimeError(
            f"the pool is on {device}, but Numba uses cuda:{number} in this thread: leave Numba's own "
            "`with cuda.gpus[...]` before blocks are copied"
        )


def as_words(pool: Tensor, widest: int = 8) -> Tensor:
    """The pool's memory as [num_blocks, words], in the widest words that divide a block and its address.

    `widest` bounds the bytes of a word: 8, 4, 2 or 1.
    """
    rows = pool.view(-1).view(torch.int8).view(pool.shape[0], -1)  # flat first: a size of 1 has any stride
    width = next(
        width
        for width in _WORDS
        if width <= widest and rows.shape[1] % width == 0 and rows.data_ptr() % width == 0
    )
    return rows.view(_WORDS[width])


def launch_copy_blocks(source_words: Any, destination_words: Any, pairs: Any, stream: Any = 0) -> None:
    """Launch `_copy_kernel` for all pairs, unchecked.

    Both pools: [num_blocks, words], words of one width and as many in each block; they may be the same array.
    pairs: int64 [n, 2], with n > 0. Arrays that Numba takes: device arrays, or NumPy arrays in its simulator
    (NUMBA_ENABLE_CUDASIM=1). The grid is [n, parts], a few words a thread: parts grows with the words, from 1
    to 65535, the most that a grid's second axis may have. A thread block has at most `_THREADS` threads, and
    no more than there are words. `stream` goes into the launch.
    """
    num_words = source_words.shape[1]
    threads = min(_THREADS, num_words)
    # A few words a thread: enough thread blocks to fill a GPU, few enough to start fast.
    parts = min(max(1, num_words // (threads * 4)), 65535)
    _copy_kernel[(pairs.shape[0], parts), threads, stream](source_words, destination_words, pairs)


@cuda.jit
def _copy_kernel(source_words, destination_words, pairs):  # type: ignore[no-untyped-def]
    """Copy block pairs[x, 0] of the source pool onto block pairs[x, 1] of the other; x is cuda.blockIdx.x.

    The grid is [n, parts]: `cuda.gridDim.y` thread blocks of `cuda.blockDim.x` threads share one pair. In one
    row they are T threads; thread t of that row copies the words t, t + T, t + 2T and so on. T may be smaller
    or larger than the number of words. Both pools: [num_blocks, words]; pairs: int64 [n, 2].
    """
    source = pairs[cuda.blockIdx.x, 0]
    destination = pairs[cuda.blockIdx.x, 1]
    first = cuda.blockIdx.y * cuda.blockDim.x + cuda.threadIdx.x
    for word in range(first, source_words.shape[1], cuda.gridDim.y * cuda.blockDim.x):
        destination_words[destination, word] = source_words[source, word]


def _as_device_array(tensor: Tensor) -> Any:
    """Numba's view of a contiguous tensor of integers; torch itself gives none of host memory."""
    interface = {
        "shape": tuple(tensor.shape),
        "typestr": f"<i{tensor.element_size()}",
        "data": (tensor.data_ptr(), False),
        "version": 3,
    }
    # sync=False and no stream named: Numba must not wait, one stream keeps the order anyway.
    return cuda.from_cuda_array_interface(interface, owner=tensor, sync=False)


def checked_pairs(
    sources: Sequence[int] | Tensor,
    destinations: Sequence[int] | Tensor,
    num_sources: int,
    num_destinations: int,
) -> list[tuple[int, int]]:
    """The pairs as host integers, ids of pools of so many blocks, no destination twice; or an error."""
    ids = [
        [index(block) for block in (blocks.tolist() if isinstance(blocks, Tensor) else blocks)]
        for blocks in (sources, destinations)
    ]
    if len(ids[0]) != len(ids[1]):
        raise ValueError(f"sources, destinations: {len(ids[0])} and {len(ids[1])} blocks, must be as many")
    pools = ("sources", "destinations"), ids, (num_sources, num_destinations)
    for name, blocks, num_blocks in zip(*pools, strict=True):
        for block in blocks:
            if not 0 <= block < num_blocks:
                raise ValueError(f"{name}: block {block}, its pool has blocks 0 to {num_blocks - 1}")
    for block, times in Counter(ids[1]).items():
        if times > 1:
            raise ValueError(
                f"destinations: block {block} is named twice, the copies would depend on their order"
            )
    return list(zip(*ids, strict=True))
