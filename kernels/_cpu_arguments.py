"""What attention_cpu.py hands to compiled code: tensors as NumPy arrays, checked, and options filled in."""

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


def as_arguments(
    queries: Tensor, key_cache: Tensor, value_cache: Tensor, rows: tuple[Tensor, Tensor, Tensor],
    options: tuple[float, int | None, float | None],
) -> tuple[Any, ...]:  # fmt: skip
    """An array for the result, and the fields of Batch, of two Caches and of Options, as plain tuples.

    rows: query_starts, block_tables and context_lengths. options: scale, window and soft cap.
    The tuples are plain because Numba looks 0.5 µs longer at a tuple with names.
    """
    scale, window, softcap = options
    check_options(window, softcap)
    if queries.device.type != "cpu":
        raise ValueError(f"queries: on {queries.device}, must be on the CPU")
    starts, tables, lengths = (tensor.contiguous().numpy() for tensor in rows)
    check_contents(tables, lengths, *key_cache.shape[:2])
    number = np.float64 if queries.dtype == torch.float64 else np.float32
    wide = queries.detach().to(torch.float64 if number is np.float64 else torch.float32).contiguous().numpy()
    out = np.empty_like(wide)
    out[: starts[0]], out[starts[-1] :] = 0, 0  # rows that belong to no sequence
    filled_in = (number(scale), 2**62 if window is None else window, number(softcap or 0))
    return out, (wide, starts, tables, lengths), _as_cache(key_cache), _as_cache(value_cache), filled_in


def _as_cache(cache: Tensor) -> tuple[Any, ...]:
    (num_blocks, block_size, num_heads, head_dim), (block, slot, head, _) = cache.shape, cache.stride()
    size = (num_blocks - 1) * block + (block_size - 1) * slot + (num_heads - 1) * head + head_dim
    flat = cache.detach().as_strided((size if cache.numel() else 0,), (1,))
    if cache.dtype in _STAND_INS:
        numbers = flat.view(torch.int16).numpy().view(_STAND_INS[cache.dtype])
    else:
        numbers = flat.numpy()
    return numbers, block, slot, head, block_size, num_heads


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
