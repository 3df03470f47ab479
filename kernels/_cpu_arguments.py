"""What attention_cpu.py hands to compiled code: tensors as NumPy arrays, checked, and options filled in.

The engine makes these arrays once for all layers of a step, and writes K and V through them too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ._checks import check_options
from ._numba import entry

# Numba's CPU target has no 16-bit floats: integer types stand for them.
_STAND_INS = {torch.float16: np.int16, torch.bfloat16: np.uint16}


class Batch(NamedTuple):
    """The queries of all sequences, and where the K and V of each sequence lie."""

    queries: np.ndarray  # [total_tokens, num_heads, head_dim]
    query_starts: np.ndarray  # [batch + 1]
    block_tables: np.ndarray  # [batch, max_blocks]
    context_lengths: np.ndarray  # [batch]


class Cache(NamedTuple):
    """K or V of one layer, and how many numbers lie from one block, slot and head to the next."""

    numbers: np.ndarray  # flat: all from the first to the last, with whatever lies between
    block_stride: int
    slot_stride: int
    head_stride: int
    block_size: int
    num_heads: int


class Options(NamedTuple):
    """How scores are made. A window larger than any context hides nothing; a softcap of 0 is none."""

    scale: float
    window: int
    softcap: float


class Partial(NamedTuple):
    """Attention over a part of the context, as in the reference, for many query rows [...] at once."""

    maximum: np.ndarray  # [...] of the scores seen so far; the lowest finite number where there were none
    total: np.ndarray  # [...] sum of exp(score - maximum)
    weighted: np.ndarray  # [..., head_dim], of a tile [head_dim, ...]: sum of exp(score - maximum) * value


def as_queries(queries: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """An array for the result, and the queries in the type that sums are made in."""
    wide = queries if queries.dtype == torch.float64 else queries.to(torch.float32)
    array = wide.detach().contiguous().numpy()
    return np.empty_like(array), array


def as_rows(rows: tuple[Tensor, Tensor, Tensor], pool_shape: Any) -> tuple[np.ndarray, ...]:
    """The fields of Batch after the queries, once they are known not to lead out of a pool.

    rows: query_starts, block_tables, context_lengths. pool_shape: [num_blocks, block_size, ...], of K or V.
    """
    starts, tables, lengths = (tensor.contiguous().numpy() for tensor in rows)
    check_contents(tables, lengths, *pool_shape[:2])
    return starts, tables, lengths


def as_options(options: tuple[float, int | None, float | None], number: Any) -> tuple[Any, ...]:
    """The fields of Options, `scale` and `softcap` of the type `number`."""
    scale, window, softcap = options
    check_options(window, softcap)
    return number(scale), 2**62 if window is None else window, number(softcap or 0)


def as_cache(cache: Tensor) -> tuple[Any, ...]:
    """The fields of Cache; the last stride must be 1. Numba looks 0.5 µs longer at a tuple with names."""
    (num_blocks, block_size, num_heads, head_dim), (block, slot, head, _) = cache.shape, cache.stride()
    size = (num_blocks - 1) * block + (block_size - 1) * slot + (num_heads - 1) * head + head_dim
    flat = cache.detach().as_strided((size if cache.numel() else 0,), (1,))
    return as_numbers(flat), block, slot, head, block_size, num_heads


def as_numbers(tensor: Tensor) -> np.ndarray:
    """The same memory as an array."""
    if tensor.dtype in _STAND_INS:
        return tensor.view(torch.int16).numpy().view(_STAND_INS[tensor.dtype])
    return tensor.numpy()


def check_contents(tables: np.ndarray, lengths: np.ndarray, num_blocks: int, block_size: int) -> None:
    """Refuse lengths and block ids that lead out of the pool."""
    row, column = find_fault(tables, lengths, block_size, num_blocks)
    if row >= 0 and column < 0:
        room = tables.shape[1] * block_size
        raise ValueError(f"context_lengths: {lengths[row]}, block_tables holds 0 to {room} tokens")
    if row >= 0:
        block = tables[row, column]
        raise ValueError(f"block_tables: block {block}, the cache has blocks 0 to {num_blocks - 1}")


@entry
def find_fault(block_tables: Any, lengths: Any, block_size: int, num_blocks: int) -> tuple[int, int]:
    """(row, column) of the first bad block id; column -1 for a bad length; (-1, 0) if there is none."""
    for row in range(lengths.size):
        if lengths[row] < 0 or lengths[row] > block_tables.shape[1] * block_size:
            return row, -1
        for column in range((lengths[row] + block_size - 1) // block_size):
            if block_tables[row, column] < 0 or block_tables[row, column] >= num_blocks:
                return row, column
    return -1, 0


def write(cache: Any, tokens: Tensor, slots: np.ndarray) -> None:
    """Write K or V of tokens [T, num_kv_heads, head_dim] to the slots [T] of a layer; -1 skips a token.

    `write_kv` does the same, after checks. Here `as_cache` made the cache, and the slots were checked before.
    Raises ValueError for tokens of another number, dtype or number of heads.
    """
    numbers = as_numbers(tokens.contiguous())
    if numbers.dtype != cache[0].dtype or numbers.shape[:2] != (len(slots), cache[5]):
        raise ValueError(
            f"tokens: {tokens.dtype} {list(tokens.shape)}, must be {len(slots)} tokens of {cache[5]} heads "
            "in the dtype of the cache"
        )
    _write(cache, numbers, slots)


@entry
def _write(cache: Any, tokens: Any, slots: Any) -> None:
    numbers, block_stride, slot_stride, head_stride, block_size, num_heads = cache
    for token in range(slots.size):
        block, offset = slots[token] // block_size, slots[token] % block_size
        start = block * block_stride + offset * slot_stride
        for head in range(num_heads if slots[token] >= 0 else 0):
            for d in range(tokens.shape[2]):
                numbers[start + head * head_stride + d] = tokens[token, head, d]
