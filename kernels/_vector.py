"""Vector arithmetic for attention_cpu.py: what takes nearly all of its time.

Numba compiles plain loops, and LLVM makes vector code of some of them. For the four functions that come first
it reaches a third of the speed of these, which take several rows at a time and keep their sums in registers.
Each docstring says in plain Python what the function does; u stands for 0, 1, 2 and 3.
`cache` is flat, `starts` says where its rows begin, and `shift` is added to that.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite.binding import get_host_cpu_features
from numba import types
from numba.extending import overload

from ._llvm import (
    add_product,
    fetch,
    lanes_in,
    larger,
    largest_lane,
    load,
    number_at,
    spread,
    store,
    sum_each,
)  # fmt: skip
from ._numba import EXACT, fast

VECTOR = 64  # bytes that one load takes; LLVM makes several registers of them where registers are smaller
# Bytes of a row of sums that stay in registers: AVX-512 has 32 registers of 64 bytes.
PIECE = 256 if get_host_cpu_features().get("avx512f") else 64
LANES = 16  # numbers in a vector at most
CACHE_LINE = 64  # bytes


# ---- dot products and weighted sums ----------------------------------------------------------------------


@fast
def dot_four(scores: Any, i: int, query: Any, cache: Any, starts: Any, shift: int) -> None:
    """scores[i + u] = sum(query[d] * cache[starts[i + u] + shift + d] for each d)"""
    lanes = lanes_in(query, VECTOR)
    whole = query.size - query.size % lanes
    row0, row1, row2, row3 = _four_rows(starts, i, shift)
    sum0 = sum1 = sum2 = sum3 = spread(query.dtype.type(0), VECTOR)
    for d in range(0, whole, lanes):
        numbers = load(query, d, VECTOR)
        sum0 = add_product(sum0, numbers, load(cache, row0 + d, VECTOR), False)
        sum1 = add_product(sum1, numbers, load(cache, row1 + d, VECTOR), False)
        sum2 = add_product(sum2, numbers, load(cache, row2 + d, VECTOR), False)
        sum3 = add_product(sum3, numbers, load(cache, row3 + d, VECTOR), False)
    store(sum_each(sum0, sum1, sum2, sum3), scores, i)
    for d in range(whole, query.size):
        for u in range(4):
            scores[i + u] += query[d] * number_at(cache, starts[i + u] + shift + d)


@fast
def add_four_rows(total: Any, weights: Any, i: int, cache: Any, starts: Any, shift: int) -> None:
    """total[d] += sum(weights[i + u] * cache[starts[i + u] + shift + d] for u in range(4))"""
    lanes = lanes_in(total, VECTOR)
    whole = total.size - total.size % lanes
    row0, row1, row2, row3 = _four_rows(starts, i, shift)
    weight0, weight1 = spread(weights[i], VECTOR), spread(weights[i + 1], VECTOR)
    weight2, weight3 = spread(weights[i + 2], VECTOR), spread(weights[i + 3], VECTOR)
    for d in range(0, whole, lanes):
        numbers = load(total, d, VECTOR)
        numbers = add_product(numbers, weight0, load(cache, row0 + d, VECTOR), False)
        numbers = add_product(numbers, weight1, load(cache, row1 + d, VECTOR), False)
        numbers = add_product(numbers, weight2, load(cache, row2 + d, VECTOR), False)
        numbers = add_product(numbers, weight3, load(cache, row3 + d, VECTOR), False)
        store(numbers, total, d)
    for d in range(whole, total.size):
        for u in range(4):
            total[d] += weights[i + u] * number_at(cache, starts[i + u] + shift + d)


@fast
def dot_four_with_columns(scores: Any, i: int, columns: Any, cache: Any, starts: Any, shift: int) -> None:
    """scores[i + u, j] = sum(cache[starts[i + u] + shift + d] * columns[d, j] for each d)"""
    row0, row1, row2, row3 = _four_rows(starts, i, shift)
    for j in range(0, columns.shape[1], lanes_in(columns, PIECE)):
        sum0 = sum1 = sum2 = sum3 = spread(columns.dtype.type(0), PIECE)
        for d in range(columns.shape[0]):
            numbers = load(columns[d], j, PIECE)
            sum0 = add_product(sum0, spread(number_at(cache, row0 + d), PIECE), numbers, False)
            sum1 = add_product(sum1, spread(number_at(cache, row1 + d), PIECE), numbers, False)
            sum2 = add_product(sum2, spread(number_at(cache, row2 + d), PIECE), numbers, False)
            sum3 = add_product(sum3, spread(number_at(cache, row3 + d), PIECE), numbers, False)
        store(sum0, scores[i], j)
        store(sum1, scores[i + 1], j)
        store(sum2, scores[i + 2], j)
        store(sum3, scores[i + 3], j)


@fast
def add_to_four_rows(
    totals: Any, d: int, weights: Any, cache: Any, starts: Any, shift: int, skip_zeros: bool
) -> None:
    """totals[d + u, j] += sum(weights[i, j] * cache[starts[i] + shift + d + u] for each i)

    Rows past the last one of `totals` are left out. Where `skip_zeros`, a weight of 0 adds nothing, whatever
    it is a weight of: 0 * NaN would be NaN.
    """
    last = totals.shape[0] - 1
    row1, row2, row3 = min(d + 1, last), min(d + 2, last), min(d + 3, last)
    for j in range(0, weights.shape[1], lanes_in(weights, PIECE)):
        sum0, sum1 = load(totals[d], j, PIECE), load(totals[row1], j, PIECE)
        sum2, sum3 = load(totals[row2], j, PIECE), load(totals[row3], j, PIECE)
        for i in range(weights.shape[0]):
            numbers, start = load(weights[i], j, PIECE), starts[i] + shift
            sum0 = add_product(sum0, spread(number_at(cache, start + d), PIECE), numbers, skip_zeros)
            sum1 = add_product(sum1, spread(number_at(cache, start + row1), PIECE), numbers, skip_zeros)
            sum2 = add_product(sum2, spread(number_at(cache, start + row2), PIECE), numbers, skip_zeros)
            sum3 = add_product(sum3, spread(number_at(cache, start + row3), PIECE), numbers, skip_zeros)
        store(sum3, totals[row3], j)
        store(sum2, totals[row2], j)
        store(sum1, totals[row1], j)
        store(sum0, totals[d], j)


@fast
def fetch_four(cache: Any, i: int, starts: Any, shift: int, depth: int) -> None:
    """Begin to bring cache[starts[i + u] + shift :][:depth] near; harmless where there is no such memory."""
    for u in range(4):
        for d in range(0, depth, lanes_in(cache, CACHE_LINE)):
            fetch(cache, starts[i + u] + shift + d)


@fast
def _four_rows(starts: Any, i: int, shift: int) -> tuple[int, int, int, int]:
    return starts[i] + shift, starts[i + 1] + shift, starts[i + 2] + shift, starts[i + 3] + shift


@fast
def visible_slots(slots: Any, cache: Any, block_table: Any, first: int, end: int) -> None:
    """slots[i] = where token first + i lies in cache.numbers, block by block; the rest repeat the last."""
    for index in range(first // cache.block_size, (end - 1) // cache.block_size + 1):
        start, before = block_table[index] * cache.block_stride, index * cache.block_size
        for token in range(max(first, before), min(end, before + cache.block_size)):
            slots[token - first] = start + (token - before) * cache.slot_stride
    slots[end - first :] = slots[end - first - 1]


# ---- scores ----------------------------------------------------------------------------------------------


@fast
def finish_scores(scores: Any, scale: float, softcap: float) -> None:
    """scores[i] *= scale; and then, if softcap > 0, scores[i] = softcap * tanh(scores[i] / softcap)"""
    for i in range(scores.size):
        scores[i] *= scale
    for i in range(scores.size if softcap > 0 else 0):
        scores[i] = softcap * tanh(scores[i] / softcap)


@fast
def hide(scores: Any, key: int, positions: Any, window: int) -> None:
    """if not positions[j] - window < key <= positions[j]: scores[j] = -inf"""
    for j in range(scores.size):
        hidden = key > positions[j] or key <= positions[j] - window
        scores[j] = -np.inf if hidden else scores[j]


@fast
def lowest(numbers: Any) -> Any:
    """The lowest finite number of a dtype. Unlike -inf it can be subtracted from -inf."""
    return numbers.dtype.type(np.finfo(numbers.dtype).min)


@fast
def largest(numbers: Any) -> Any:
    """max(numbers), of which there are a multiple of LANES; NaN is passed over, and nothing gives -inf."""
    lanes = spread(numbers.dtype.type(-np.inf), VECTOR)
    for i in range(0, numbers.size, lanes_in(numbers, VECTOR)):
        lanes = larger(lanes, load(numbers, i, VECTOR))
    return largest_lane(lanes)


def exp(x: Any) -> Any:
    """math.exp(x), for x <= 0; -inf gives exactly 0, NaN gives NaN."""
    return math.exp(x)


def tanh(x: Any) -> Any:
    """math.tanh(x)"""
    return math.tanh(x)


@overload(exp, jit_options=EXACT)
def _exp(x):
    return _exp_float32 if x == types.float32 else lambda x: math.exp(x)


@overload(tanh, jit_options=EXACT)
def _tanh(x):
    return _tanh_float32 if x == types.float32 else lambda x: math.tanh(x)


def _exp_float32(x):
    # 2^n * e^r with x = n ln 2 + r: adding 1.5 * 2^23 rounds to an integer, which the low bits then hold. The
    # polynomial is Taylor's, |r| <= 0.35.
    shifted = x * np.float32(1.4426950408889634) + np.float32(12582912.0)
    n = shifted - np.float32(12582912.0)
    r = (x - n * np.float32(0.693359375)) + n * np.float32(2.12194440e-4)
    p = np.float32(1 / 5040) * r + np.float32(1 / 720)
    p = p * r + np.float32(1 / 120)
    p = p * r + np.float32(1 / 24)
    p = p * r + np.float32(1 / 6)
    p = p * r + np.float32(0.5)
    p = (p * r) * r + r + np.float32(1.0)
    power = np.int32((np.float32(shifted).view(np.int32) + np.int32(127)) << np.int32(23))
    y = p * np.int32(power).view(np.float32)
    return np.float32(0.0) if x < np.float32(-87.0) else y


def _tanh_float32(x):
    a = abs(x)
    e = exp(np.float32(-2.0) * a)
    s = x * x  # near zero 1 - e would cancel, the series doesn't
    series = np.float32(62 / 2835) * s - np.float32(17 / 315)
    series = ((series * s + np.float32(2 / 15)) * s - np.float32(1 / 3)) * s
    far = (np.float32(1.0) - e) / (np.float32(1.0) + e)
    far = -far if x < np.float32(0.0) else far
    return x + x * series if a < np.float32(0.25) else far
