"""Paged attention compiled for the CPU with Numba: K and V are read in place, through the block tables.

Twin: reference/attention.py; kernels/attention.py has the same two functions for a GPU.
Docs page: docs/concepts/paged-attention.md.

Decode is bound by memory: a work item reads a run of tokens once, for all heads. Prefill is bound by
arithmetic: a work item is a tile of query rows kept transposed, `[head_dim][TILE]`, so that every inner loop
runs over TILE neighbouring numbers, which become vector instructions, while K and V are read as scalars.
"""

import math
import threading
from typing import Any, NoReturn

import numpy as np
import torch
from llvmlite import ir
from numba import njit, prange, types
from numba.core import cgutils
from numba.extending import intrinsic, overload
from torch import Tensor

SPLIT = 256  # tokens of context in one decode work item: fixed, so a row's sums never depend on its company
TILE = 64  # query rows (queries times the heads that share a K and V) in one prefill work item
STEP = 64  # keys that a prefill tile takes at a time
LANES = 16  # scores that decode treats at a time
AHEAD = 16  # tokens between the one being read and the one being fetched into the caches
WORTH_A_THREAD = 200_000  # multiply-adds: waking a thread for fewer costs more than it saves

# Sums may be reordered and fused. NaN and infinity keep their meaning: -inf stands for a masked score.
INNER: dict[str, Any] = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
FAST: dict[str, Any] = {"fastmath": {"contract", "nsz", "reassoc"}, "forceinline": True} | INNER
EXACT: dict[str, Any] = {"fastmath": {"contract"}, "forceinline": True} | INNER
ENTRY: dict[str, Any] = {"error_model": "numpy", "nogil": True, "cache": True}

_COMPUTE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
# Numba's CPU target knows no 16-bit floats: these integer types tell the two apart.
_BITS = {torch.float16: torch.int16, torch.bfloat16: torch.uint16}
_launch_lock = threading.Lock()  # Numba's fallback threading layer doesn't bear two callers at once


# ---- numbers ---------------------------------------------------------------------------------------------


def _exp(x):
    """exp(x) for x <= 0; -inf gives exactly 0, NaN gives NaN."""


@overload(_exp, jit_options=EXACT)
def _exp_overload(x):
    return _exp_float32 if x == types.float32 else lambda x: math.exp(x)


def _exp_float32(x):
    # 2^n * e^r with x = n ln 2 + r: adding 1.5 * 2^23 rounds to an integer, which the low bits then hold. The
    # polynomial is Taylor's, |r| <= 0.35; no branch and no call, so that a loop over it is vectorised.
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


def _tanh(x):
    """tanh(x)."""


@overload(_tanh, jit_options=EXACT)
def _tanh_overload(x):
    return _tanh_float32 if x == types.float32 else lambda x: math.tanh(x)


def _tanh_float32(x):
    a = abs(x)
    e = _exp(np.float32(-2.0) * a)
    s = x * x  # near zero 1 - e would cancel, the series doesn't
    series = np.float32(62 / 2835) * s - np.float32(17 / 315)
    series = ((series * s + np.float32(2 / 15)) * s - np.float32(1 / 3)) * s
    far = (np.float32(1.0) - e) / (np.float32(1.0) + e)
    far = -far if x < np.float32(0.0) else far
    return x + x * series if a < np.float32(0.25) else far


@intrinsic
def _at(typing_context, array, index):
    """`array[index]` as a float, 16-bit values widened. No test for a negative index: it would cost the loops
    around it their vector loads."""
    number = array.dtype if isinstance(array.dtype, types.Float) else types.float32

    def codegen(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        value = builder.load(builder.gep(data, [arguments[1]]))
        if array.dtype == types.int16:
            return builder.fpext(builder.bitcast(value, ir.HalfType()), ir.FloatType())
        if array.dtype == types.uint16:  # bfloat16 is the upper half of a float32
            bits = builder.shl(builder.zext(value, ir.IntType(32)), ir.IntType(32)(16))
            return builder.bitcast(bits, ir.FloatType())
        return value

    return number(array, types.intp), codegen


@intrinsic
def _prefetch(typing_context, array, index):
    """Start to fetch the cache line of `array[index]`; harmless where the index is past the end."""

    def codegen(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        address = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        flag = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, flag, flag, flag])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [address, flag(0), flag(3), flag(1)])  # to read, keep it close, data
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen


# ---- the plan: what is to be done, in items of bounded size ------------------------------------------------


@njit(**ENTRY)
def _first_fault(tables, lengths, query_starts, num_queries, block_size, num_blocks):
    """(row, column) of the first bad block id; column -1: bad length, -2: bad query start; (-1, 0): none."""
    for row in range(lengths.size):
        if lengths[row] < 0 or lengths[row] > tables.shape[1] * block_size:
            return row, -1
        if query_starts[row + 1] < query_starts[row]:
            return row, -2
        for column in range((lengths[row] + block_size - 1) // block_size):
            if tables[row, column] < 0 or tables[row, column] >= num_blocks:
                return row, column
    if query_starts[0] != 0 or query_starts[lengths.size] != num_queries:
        return 0, -2
    return -1, 0


@njit(**ENTRY)
def _plan(lengths, query_starts, num_heads, num_kv_heads, window):
    """Work items (sequence, kv_head, first, cost), the splits (kv_head -1) before the tiles; and the first
    split of each sequence. A sequence with one query is split over its tokens, any other tiled over queries."""
    group = num_heads // num_kv_heads
    most = 0
    for row in range(lengths.size):
        new = query_starts[row + 1] - query_starts[row]
        most += lengths[row] // SPLIT + 1 + (new * group // TILE + 1) * num_kv_heads
    items, first_split = np.empty((most, 4), np.int64), np.empty(lengths.size + 1, np.int64)
    count = 0
    for row in range(lengths.size):
        first_split[row] = count
        end = np.int64(lengths[row])
        token = max(0, end - window) if query_starts[row + 1] - query_starts[row] == 1 else end
        while token < end:
            next_token = min(end, (token // SPLIT + 1) * SPLIT)
            items[count] = row, -1, token, (next_token - token) * num_heads
            token, count = next_token, count + 1
    first_split[lengths.size] = count
    for row in range(lengths.size):
        new = np.int64(query_starts[row + 1] - query_starts[row])
        for kv_head in range(num_kv_heads if new > 1 else 0):
            for first in range(0, new * group, TILE):
                keys = lengths[row] - new + min(new, (first + TILE) // group)
                items[count] = row, kv_head, first, max(0, min(keys, window + TILE // group)) * TILE
                count += 1
    return items[:count], first_split


@njit(**ENTRY)
def _share(items, threads, smallest):
    """The first item of each worker, and the end: consecutive items of about equal total cost."""
    total = 0
    for item in range(items.shape[0]):
        total += items[item, 3]
    workers = max(1, min(threads, total // smallest))
    starts = np.full(workers + 1, items.shape[0])
    done, worker = 0, 0
    for item in range(items.shape[0]):
        while worker < workers and done * workers >= total * worker:
            starts[worker] = item
            worker += 1
        done += items[item, 3]
    return starts


@njit(**FAST)
def _locate(offsets, table, first, last, block_size, strides, shift):
    """offsets[i] = where token first + i starts in the flat cache, by the block table."""
    token = first
    while token < last:
        inside = token % block_size
        start = table[token // block_size] * strides[0] + inside * strides[1] + shift
        for i in range(min(block_size - inside, last - token)):
            offsets[token - first + i] = start + i * strides[1]
        token += block_size - inside


# ---- decode ----------------------------------------------------------------------------------------------


@njit(**FAST)
def _four_dots(sums, query, cache, offsets, shift):
    """sums[u] = query times the row at offsets[u] + shift, for four rows."""
    row0, row1, row2, row3 = offsets[0] + shift, offsets[1] + shift, offsets[2] + shift, offsets[3] + shift
    sum0 = sum1 = sum2 = sum3 = query.dtype.type(0)
    for d in range(query.size):
        number = query[d]
        sum0 += number * _at(cache, row0 + d)
        sum1 += number * _at(cache, row1 + d)
        sum2 += number * _at(cache, row2 + d)
        sum3 += number * _at(cache, row3 + d)
    sums[0], sums[1], sums[2], sums[3] = sum0, sum1, sum2, sum3


@njit(**FAST)
def _add_four(total, weights, cache, offsets, shift):
    """total += weights[u] times the row at offsets[u] + shift, for four rows."""
    row0, row1, row2, row3 = offsets[0] + shift, offsets[1] + shift, offsets[2] + shift, offsets[3] + shift
    w0, w1, w2, w3 = weights[0], weights[1], weights[2], weights[3]
    for d in range(total.size):
        near = w0 * _at(cache, row0 + d) + w1 * _at(cache, row1 + d)
        total[d] += near + w2 * _at(cache, row2 + d) + w3 * _at(cache, row3 + d)


@njit(**FAST)
def _fetch_four(cache, offsets, shift, head_dim):
    for u in range(4):
        for d in range(0, head_dim, 64 // cache.itemsize):
            _prefetch(cache, offsets[u] + shift + d)


@njit(**FAST)
def _score_split(scores, query, keys, offsets, count, num_kv_heads, head_stride):
    """scores[h, i] = query head h times key i."""
    group = query.shape[0] // num_kv_heads
    for i in range(0, count, 4):
        for kv_head in range(num_kv_heads):
            shift = kv_head * head_stride
            _fetch_four(keys, offsets[i + AHEAD :], shift, query.shape[1])
            for head in range(kv_head * group, (kv_head + 1) * group):
                _four_dots(scores[head, i : i + 4], query[head], keys, offsets[i : i + 4], shift)


@njit(**FAST)
def _weigh_split(line, count, softcap, lanes):
    """Turn one head's scores into softmax weights, not yet divided by their sum; return maximum and sum."""
    end = (count + LANES - 1) // LANES * LANES
    if softcap > 0:
        for i in range(count):
            line[i] = softcap * _tanh(line[i] / softcap)
    line[count:end] = -np.inf
    lanes[:] = -np.inf
    for i in range(0, end, LANES):  # LANES maxima side by side: one alone wouldn't be vectorised
        for j in range(LANES):
            lanes[j] = line[i + j] if line[i + j] > lanes[j] else lanes[j]
    highest = lanes[0]
    for j in range(1, LANES):
        highest = max(highest, lanes[j])
    shift = highest if highest > -np.inf else line.dtype.type(0)
    total = line.dtype.type(0)
    for i in range(end):
        weight = _exp(line[i] - shift)
        line[i] = weight
        total += weight
    return highest, total


@njit(**FAST)
def _mix_split(totals, weights, values, offsets, count, num_kv_heads, head_stride):
    """totals[h] = the weighted sum of the values."""
    group = totals.shape[0] // num_kv_heads
    totals[:] = 0
    for i in range(0, count, 4):
        for kv_head in range(num_kv_heads):
            shift = kv_head * head_stride
            _fetch_four(values, offsets[i + AHEAD :], shift, totals.shape[1])
            for head in range(kv_head * group, (kv_head + 1) * group):
                _add_four(totals[head], weights[head, i : i + 4], values, offsets[i : i + 4], shift)
