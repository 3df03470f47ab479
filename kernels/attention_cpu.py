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

import numba
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
AHEAD = 16  # tokens between the one being read and the one being fetched into the caches
WORTH_A_THREAD = 200_000  # multiply-adds: waking a thread for fewer costs more than it saves

# Sums may be reordered and fused. NaN and infinity keep their meaning: -inf stands for a masked score.
FAST: dict[str, Any] = {
    "fastmath": {"contract", "nsz", "reassoc"},
    "error_model": "numpy",
    "forceinline": True,
}
PLAIN: dict[str, Any] = {"fastmath": {"contract"}, "error_model": "numpy", "forceinline": True}
LAUNCH: dict[str, Any] = {"parallel": True, "nogil": True, "cache": True, "error_model": "numpy"}

_launch_lock = threading.Lock()  # Numba's fallback threading layer doesn't bear two callers at once
_COMPUTE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
# Numba's CPU target knows no 16-bit floats: these integer types tell the two apart.
_BITS = {torch.float16: torch.int16, torch.bfloat16: torch.uint16}


# ---- scalars ---------------------------------------------------------------------------------------------


def _exp(x):
    """exp(x) for x <= 0; -inf gives exactly 0, NaN gives NaN."""


@overload(_exp, jit_options=PLAIN)
def _exp_overload(x):
    return _exp_float32 if x == types.float32 else lambda x: math.exp(x)


def _exp_float32(x):
    # 2^n * e^r with x = n ln 2 + r: adding 1.5 * 2^23 rounds to an integer that the low bits then hold. The
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


@overload(_tanh, jit_options=PLAIN)
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


def _row(cache, start, head_dim, buffer):
    """One token's K or V of one head as floats: a view of the cache, or `buffer` filled from 16-bit values."""


@overload(_row, jit_options=PLAIN)
def _row_overload(cache, start, head_dim, buffer):
    if isinstance(cache.dtype, types.Float):
        return lambda cache, start, head_dim, buffer: cache[start : start + head_dim]
    return _row_of_float16 if cache.dtype == types.int16 else _row_of_bfloat16


def _row_of_bfloat16(cache, start, head_dim, buffer):
    bits = cache[start : start + head_dim]
    for d in range(head_dim):  # bfloat16 is the upper half of a float32
        buffer[d] = np.uint32(np.uint32(bits[d]) << np.uint32(16)).view(np.float32)
    return buffer[:head_dim]


def _row_of_float16(cache, start, head_dim, buffer):
    bits = cache[start : start + head_dim]
    for d in range(head_dim):
        # Move exponent and fraction into place, then times 2^112 for the difference of the exponents' biases,
        # which is right for subnormals too; an exponent of all ones (inf, NaN) must stay all ones.
        half = np.uint32(np.uint16(bits[d]))
        size = np.uint32(np.uint32(half & np.uint32(0x7FFF)) << np.uint32(13))
        scaled = np.float32(np.uint32(size).view(np.float32) * np.float32(2.0**112)).view(np.uint32)
        special = np.uint32(size | np.uint32(0x7F800000))
        size = special if size >= np.uint32(0x0F800000) else np.uint32(scaled)
        sign = np.uint32(np.uint32(half & np.uint32(0x8000)) << np.uint32(16))
        buffer[d] = np.uint32(size | sign).view(np.float32)
    return buffer[:head_dim]


@intrinsic
def _prefetch(typing_context, array, index):
    """Start to fetch the cache line of `array[index]`; harmless where the index is past the end."""

    def codegen(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        address = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        flag = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, flag, flag, flag])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [address, flag(0), flag(3), flag(1)])  # a read, keep it close, data
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen


# ---- what both kernels share -----------------------------------------------------------------------------


@njit(**FAST)
def _locate(offsets, table, first, last, block_size, strides):
    """offsets[i] = where token first + i starts in the flat cache, by the block table."""
    token = first
    while token < last:
        block, inside = token // block_size, token % block_size
        start = table[block] * strides[0] + inside * strides[1]
        for i in range(min(block_size - inside, last - token)):
            offsets[token - first + i] = start + i * strides[1]
        token += block_size - inside


# ---- decode ----------------------------------------------------------------------------------------------


@njit(**FAST)
def _four_dots(sums, query, row0, row1, row2, row3):
    sum0 = sum1 = sum2 = sum3 = query.dtype.type(0)
    for d in range(query.size):
        sum0 += query[d] * row0[d]
        sum1 += query[d] * row1[d]
        sum2 += query[d] * row2[d]
        sum3 += query[d] * row3[d]
    sums[0], sums[1], sums[2], sums[3] = sum0, sum1, sum2, sum3


@njit(**FAST)
def _add_four(total, weights, row0, row1, row2, row3):
    w0, w1, w2, w3 = weights[0], weights[1], weights[2], weights[3]
    for d in range(total.size):
        total[d] += w0 * row0[d] + w1 * row1[d] + w2 * row2[d] + w3 * row3[d]


@njit(**FAST)
def _fetch_four(cache, offsets, i, shift, head_dim):
    for u in range(i, i + 4):
        for d in range(0, head_dim, 64 // cache.itemsize):
            _prefetch(cache, offsets[u] + shift + d)


@njit(**FAST)
def _score_split(scores, maxima, query, keys, offsets, count, head_stride, rows, softcap):
    """scores[h, i] = query head h times key i, soft-capped; maxima[h] = the largest of them."""
    num_kv_heads, head_dim = rows.shape[1:]
    group = query.shape[0] // num_kv_heads
    maxima[:] = -np.inf
    for i in range(0, count, 4):
        for kv_head in range(num_kv_heads):
            shift = kv_head * head_stride
            _fetch_four(keys, offsets, i + AHEAD, shift, head_dim)
            row0 = _row(keys, offsets[i] + shift, head_dim, rows[0, kv_head])
            row1 = _row(keys, offsets[i + 1] + shift, head_dim, rows[1, kv_head])
            row2 = _row(keys, offsets[i + 2] + shift, head_dim, rows[2, kv_head])
            row3 = _row(keys, offsets[i + 3] + shift, head_dim, rows[3, kv_head])
            for head in range(kv_head * group, (kv_head + 1) * group):
                four = scores[head, i : i + 4]
                _four_dots(four, query[head], row0, row1, row2, row3)
                for u in range(4):
                    if softcap > 0:
                        four[u] = softcap * _tanh(four[u] / softcap)
                    if four[u] > maxima[head]:
                        maxima[head] = four[u]


@njit(**FAST)
def _weigh_split(scores, maxima, sums, count):
    """Turn scores into softmax weights, not yet divided by their sum."""
    for head in range(maxima.size):
        line = scores[head]
        highest = maxima[head] if maxima[head] > -np.inf else line.dtype.type(0)
        total = line.dtype.type(0)
        for i in range(count):
            line[i] = _exp(line[i] - highest)
            total += line[i]
        sums[head] = total
        line[count : count + 3] = 0


@njit(**FAST)
def _mix_split(totals, weights, values, offsets, count, head_stride, rows):
    """totals[h] = the weighted sum of the values."""
    num_kv_heads, head_dim = rows.shape[1:]
    group = totals.shape[0] // num_kv_heads
    totals[:] = 0
    for i in range(0, count, 4):
        for kv_head in range(num_kv_heads):
            shift = kv_head * head_stride
            _fetch_four(values, offsets, i + AHEAD, shift, head_dim)
            row0 = _row(values, offsets[i] + shift, head_dim, rows[0, kv_head])
            row1 = _row(values, offsets[i + 1] + shift, head_dim, rows[1, kv_head])
            row2 = _row(values, offsets[i + 2] + shift, head_dim, rows[2, kv_head])
            row3 = _row(values, offsets[i + 3] + shift, head_dim, rows[3, kv_head])
            for head in range(kv_head * group, (kv_head + 1) * group):
                _add_four(totals[head], weights[head, i : i + 4], row0, row1, row2, row3)


@njit(error_model="numpy")
def _plan_decode(lengths, query_starts, window):
    """Work items (row, first token, past the last) of the rows with one query, and each row's first item."""
    most = 0
    for row in range(lengths.size):
        most += lengths[row] // SPLIT + 1
    items, costs = np.empty((most, 3), np.int64), np.empty(most, np.int64)
    starts = np.empty(lengths.size + 1, np.int64)
    count = 0
    for row in range(lengths.size):
        starts[row] = count
        end = np.int64(lengths[row])
        token = max(0, end - window) if query_starts[row + 1] - query_starts[row] == 1 else end
        while token < end:
            split_end = min(end, (token // SPLIT + 1) * SPLIT)
            items[count, 0], items[count, 1], items[count, 2] = row, token, split_end
            costs[count] = split_end - token
            count += 1
            token = split_end
    starts[lengths.size] = count
    return items[:count], costs[:count], starts


@njit(error_model="numpy")
def _decode_items(items, totals, maxima, sums, query_starts, queries, query_strides, keys, key_strides,
                  values, value_strides, tables, sizes, scale, softcap, first, last):
    num_kv_heads, block_size = sizes
    num_heads, head_dim = totals.shape[1:]
    scores = np.empty((num_heads, SPLIT + 4), totals.dtype)
    query = np.empty((num_heads, head_dim), totals.dtype)
    buffers = np.empty((4, num_kv_heads, head_dim), totals.dtype)
    offsets = np.empty(SPLIT + AHEAD + 4, np.int64)
    for item in range(first, last):
        index, begin, end = items[item, 0], items[item, 1], items[item, 2]
        count = end - begin
        start = query_starts[index] * query_strides[0]
        for head in range(num_heads):
            for d in range(head_dim):
                query[head, d] = queries[start + head * query_strides[1] + d] * scale
        table = tables[index]
        _locate(offsets, table, begin, end, block_size, key_strides)
        offsets[count:] = offsets[count - 1]
        _score_split(scores, maxima[item], query, keys, offsets, count, key_strides[2], buffers, softcap)
        _weigh_split(scores, maxima[item], sums[item], count)
        _locate(offsets, table, begin, end, block_size, value_strides)
        offsets[count:] = offsets[count - 1]
        _mix_split(totals[item], scores, values, offsets, count, value_strides[2], buffers)


@njit(error_model="numpy")
def _merge_splits(out, totals, maxima, sums, first, last):
    """out[h] = softmax over all the splits of a row, each of which kept its own maximum; zeros for none."""
    out[:] = 0
    for head in range(out.shape[0]):
        highest = maxima[first:last, head].max() if last > first else 0
        whole = out.dtype.type(0)
        for item in range(first, last):
            share = _exp(maxima[item, head] - highest)
            whole += share * sums[item, head]
            for d in range(out.shape[1]):
                out[head, d] += share * totals[item, head, d]
        if last > first:
            for d in range(out.shape[1]):
                out[head, d] /= whole


# ---- prefill ---------------------------------------------------------------------------------------------


@njit(**FAST)
def _add_eight(total, factors, rows):
    """total[j] += factors[0] * rows[j] + factors[1] * rows[TILE + j] + ... over eight rows."""
    f0, f1, f2, f3, f4, f5, f6, f7 = factors
    for j in range(TILE):
        total[j] += (
            f0 * rows[j] + f1 * rows[TILE + j] + f2 * rows[2 * TILE + j] + f3 * rows[3 * TILE + j]
            + f4 * rows[4 * TILE + j] + f5 * rows[5 * TILE + j] + f6 * rows[6 * TILE + j] + f7 * rows[7 * TILE + j]
        )  # fmt: skip


@njit(**FAST)
def _score_step(scores, query, keys, offsets, count, head_dim, buffer):
    """scores[i][j] = key i times query row j."""
    whole = head_dim // 8 * 8
    for i in range(count):
        line = scores[i * TILE : (i + 1) * TILE]
        line[:] = 0
        key = _row(keys, offsets[i], head_dim, buffer)
        for d in range(0, whole, 8):
            factors = (key[d], key[d + 1], key[d + 2], key[d + 3], key[d + 4], key[d + 5], key[d + 6], key[d + 7])
            _add_eight(line, factors, query[d * TILE : (d + 8) * TILE])
        for d in range(whole, head_dim):
            factor, row = key[d], query[d * TILE : (d + 1) * TILE]
            for j in range(TILE):
                line[j] += factor * row[j]


@njit(**FAST)
def _mask_step(scores, first_key, count, positions, window):
    for i in range(count):
        line, key = scores[i * TILE : (i + 1) * TILE], first_key + i
        for j in range(TILE):
            hidden = key > positions[j] or key <= positions[j] - window
            line[j] = -np.inf if hidden else line[j]


@njit(**FAST)
def _weigh_step(scores, count, maxima, sums, rescale, highest):
    """Online softmax: scores become weights against the new maximum; `rescale` is owed by what came before."""
    for j in range(TILE):
        highest[j] = maxima[j]
    for i in range(count):
        line = scores[i * TILE : (i + 1) * TILE]
        for j in range(TILE):
            highest[j] = line[j] if line[j] > highest[j] else highest[j]
    for j in range(TILE):
        before, maxima[j] = maxima[j], highest[j]
        highest[j] = highest[j] if highest[j] > -np.inf else 0  # all hidden so far: exp(-inf - 0) is 0
        rescale[j] = _exp(before - highest[j])
        sums[j] *= rescale[j]
    for i in range(count):
        line = scores[i * TILE : (i + 1) * TILE]
        for j in range(TILE):
            line[j] = _exp(line[j] - highest[j])
            sums[j] += line[j]


@njit(**FAST)
def _mix_step(totals, weights, values, offsets, count, head_dim, buffers, partly_hidden):
    """totals[d][j] += value i, number d, times the weight of key i for query row j."""
    whole = 0 if partly_hidden else count // 8 * 8
    for i in range(0, whole, 8):
        row0 = _row(values, offsets[i], head_dim, buffers[0])
        row1 = _row(values, offsets[i + 1], head_dim, buffers[1])
        row2 = _row(values, offsets[i + 2], head_dim, buffers[2])
        row3 = _row(values, offsets[i + 3], head_dim, buffers[3])
        row4 = _row(values, offsets[i + 4], head_dim, buffers[4])
        row5 = _row(values, offsets[i + 5], head_dim, buffers[5])
        row6 = _row(values, offsets[i + 6], head_dim, buffers[6])
        row7 = _row(values, offsets[i + 7], head_dim, buffers[7])
        lines = weights[i * TILE : (i + 8) * TILE]
        for d in range(head_dim):
            factors = (row0[d], row1[d], row2[d], row3[d], row4[d], row5[d], row6[d], row7[d])
            _add_eight(totals[d * TILE : (d + 1) * TILE], factors, lines)
    for i in range(whole, count):
        line = weights[i * TILE : (i + 1) * TILE]
        row = _row(values, offsets[i], head_dim, buffers[0])
        for d in range(head_dim):
            factor, total = row[d], totals[d * TILE : (d + 1) * TILE]
            for j in range(TILE):  # a hidden value may be NaN, and 0 times NaN is NaN: add nothing instead
                total[j] += factor * line[j] if line[j] != 0 else total.dtype.type(0)


@njit(error_model="numpy")
def _plan_prefill(lengths, query_starts, group, num_kv_heads, window):
    """Work items (sequence, head of K and V, first query row), and how many keys each reads."""
    most = 0
    for row in range(lengths.size):
        most += (query_starts[row + 1] - query_starts[row]) * group // TILE + 1
    items = np.empty((most * num_kv_heads, 3), np.int64)
    costs = np.empty(most * num_kv_heads, np.int64)
    count = 0
    for row in range(lengths.size):
        new = np.int64(query_starts[row + 1] - query_starts[row])
        if new == 1:  # that is decode
            continue
        for kv_head in range(num_kv_heads):
            for first in range(0, new * group, TILE):
                reach = lengths[row] - new + min(new, (first + TILE) // group)
                items[count, 0], items[count, 1], items[count, 2] = row, kv_head, first
                costs[count] = max(0, min(reach, window + TILE // group))
                count += 1
    return items[:count], costs[:count]


@njit(error_model="numpy")
def _prefill_items(items, out, query_starts, queries, query_strides, keys, key_strides, values, value_strides,
                   tables, lengths, sizes, scale, window, softcap, first, last):
    num_kv_heads, block_size = sizes
    group, head_dim, dtype = out.shape[1] // num_kv_heads, out.shape[2], out.dtype
    query, totals = np.empty(head_dim * TILE, dtype), np.empty(head_dim * TILE, dtype)
    scores, buffers = np.empty(STEP * TILE, dtype), np.empty((8, head_dim), dtype)
    maxima, sums, rescale, highest = np.empty(TILE, dtype), np.empty(TILE, dtype), np.empty(TILE, dtype), np.empty(TILE, dtype)
    positions, offsets = np.empty(TILE, np.int64), np.empty(STEP, np.int64)
    for item in range(first, last):
        row, kv_head, first_row = items[item, 0], items[item, 1], items[item, 2]
        new = np.int64(query_starts[row + 1] - query_starts[row])
        for j in range(TILE):  # rows past the end repeat the last one, and are not written out
            flat = min(first_row + j, new * group - 1)
            positions[j] = lengths[row] - new + flat // group
            start = (query_starts[row] + flat // group) * query_strides[0]
            start += (kv_head * group + flat % group) * query_strides[1]
            for d in range(head_dim):
                query[d * TILE + j] = queries[start + d] * scale
        maxima[:], sums[:], totals[:] = -np.inf, 0, 0
        end = positions[TILE - 1] + 1
        for key in range(max(0, positions[0] - window + 1), end, STEP):
            count = min(STEP, end - key)
            _locate(offsets, tables[row], key, key + count, block_size, key_strides)
            offsets += kv_head * key_strides[2]
            _score_step(scores, query, keys, offsets, count, head_dim, buffers[0])
            if softcap > 0:
                for x in range(count * TILE):
                    scores[x] = softcap * _tanh(scores[x] / softcap)
            partly_hidden = key + count - 1 > positions[0] or key <= positions[TILE - 1] - window
            if partly_hidden:
                _mask_step(scores, key, count, positions, window)
            _weigh_step(scores, count, maxima, sums, rescale, highest)
            for d in range(head_dim):
                for j in range(TILE):
                    totals[d * TILE + j] *= rescale[j]
            _locate(offsets, tables[row], key, key + count, block_size, value_strides)
            offsets += kv_head * value_strides[2]
            _mix_step(totals, scores, values, offsets, count, head_dim, buffers, partly_hidden)
        for j in range(min(TILE, new * group - first_row)):
            flat = first_row + j
            line = out[query_starts[row] + flat // group, kv_head * group + flat % group]
            for d in range(head_dim):
                line[d] = totals[d * TILE + j] / sums[j] if positions[j] >= 0 else 0


# ---- both ------------------------------------------------------------------------------------------------


@njit(error_model="numpy")
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


@njit(error_model="numpy")
def _shares(costs, threads, smallest):
    """First item of each worker, and the end: consecutive items of about equal total cost."""
    total = costs.sum()
    workers = max(1, min(threads, total // smallest))
    starts = np.full(workers + 1, costs.size)
    done, worker = 0, 0
    for item in range(costs.size):
        while worker < workers and done * workers >= total * worker:
            starts[worker] = item
            worker += 1
        done += costs[item]
    return starts


@njit(parallel=True, nogil=True, cache=True, error_model="numpy")
def _attend_all(out, query_starts, queries, query_strides, keys, key_strides, values, value_strides,
                tables, lengths, num_blocks, block_size, num_kv_heads, scale, window, softcap, threads):
    """Fill `out`; or leave it, and return the first fault of the tables."""
    num_queries, num_heads, head_dim = out.shape
    fault = _first_fault(tables, lengths, query_starts, num_queries, block_size, num_blocks)
    if fault[0] >= 0:
        return fault
    sizes = (num_kv_heads, block_size)

    decodes, costs1, first_decodes = _plan_decode(lengths, query_starts, window)
    count = decodes.shape[0]
    if count > 0:
        totals = np.empty((count, num_heads, head_dim), out.dtype)
        maxima, sums = np.empty((count, num_heads), out.dtype), np.empty((count, num_heads), out.dtype)
        shares = _shares(costs1, threads, WORTH_A_THREAD // (2 * num_heads * head_dim))
        workers = shares.size - 1
        for worker in prange(workers):
            _decode_items(decodes, totals, maxima, sums, query_starts, queries, query_strides, keys, key_strides,
                          values, value_strides, tables, sizes, scale, softcap, shares[worker], shares[worker + 1])
    for row in range(lengths.size):
        if query_starts[row + 1] - query_starts[row] == 1:
            _merge_splits(out[query_starts[row]], totals, maxima, sums, first_decodes[row], first_decodes[row + 1])

    tiles, costs = _plan_prefill(lengths, query_starts, num_heads // num_kv_heads, num_kv_heads, window)
    if costs.size > 0:
        shares2 = _shares(costs, threads, WORTH_A_THREAD // (2 * TILE * head_dim))
        workers2 = shares2.size - 1
        for worker2 in prange(workers2):
            _prefill_items(tiles, out, query_starts, queries, query_strides, keys, key_strides, values, value_strides,
                           tables, lengths, sizes, scale, window, softcap, shares2[worker2], shares2[worker2 + 1])
    return fault


# ---- public functions ------------------------------------------------------------------------------------


def decode_attention(
    queries: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    context_lengths: Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """One query per sequence against its cached keys and values (paper, section 4.1, equation 4).

    queries: [batch, num_heads, head_dim]. key_cache and value_cache: [num_blocks, block_size, num_kv_heads,
    head_dim], any strides but 1 in the last dimension. block_tables: int32 [batch, max_blocks].
    context_lengths: int32 [batch], tokens in the cache, the query's own among them. Returns [batch, num_heads,
    head_dim] in the dtype of queries; float16 and bfloat16 are summed in float32. A row's result has the same
    bits in any batch, in any blocks, on any number of threads.

    Raises ValueError where a shape, dtype, stride, length or block id is not as said, before reading any.
    """
    batch = queries.shape[0]
    query_starts = torch.arange(batch + 1, dtype=torch.int32)
    return _attend(
        queries, key_cache, value_cache, block_tables, context_lengths, query_starts, scale, window, softcap
    )


def prefill_attention(
    queries: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    context_lengths: Tensor,
    query_starts: Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    max_query_length: int | None = None,
) -> Tensor:
    """Causal attention of each sequence's last tokens, whose keys and values are in the cache already.

    queries: [total_tokens, num_heads, head_dim], sequence after sequence; rows query_starts[s] to
    query_starts[s + 1] belong to sequence s and are its last tokens. query_starts: int32 [batch + 1].
    max_query_length sizes a GPU's grid and is not needed here. The rest, the result and the errors are as in
    `decode_attention`, and a sequence with one query gets the very bits that `decode_attention` gives it.
    """
    return _attend(
        queries, key_cache, value_cache, block_tables, context_lengths, query_starts, scale, window, softcap
    )


def _attend(
    queries: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    context_lengths: Tensor,
    query_starts: Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    _check(queries, key_cache, value_cache, block_tables, context_lengths, query_starts, window, softcap)
    compute = _COMPUTE.get(queries.dtype, queries.dtype)
    number = np.float32 if compute == torch.float32 else np.float64
    out = torch.empty(queries.shape, dtype=compute)
    tables, lengths = block_tables.contiguous().numpy(), context_lengths.contiguous().numpy()
    with _launch_lock:
        row, column = _attend_all(
            out.numpy(),
            query_starts.contiguous().numpy(),
            *_flat(queries.to(compute)),
            *_flat(key_cache),
            *_flat(value_cache),
            tables,
            lengths,
            *key_cache.shape[:3],
            number(scale),
            2**62 if window is None else window,
            number(softcap or 0),
            torch.get_num_threads(),
        )
    if row >= 0:
        _raise_fault(row, column, block_tables, context_lengths, query_starts, key_cache.shape)
    return out.to(queries.dtype)


def _flat(tensor: Tensor) -> tuple[Any, tuple[int, ...]]:
    """The memory from a view's first element to its last as a 1-D array, and the view's strides."""
    strides = tensor.stride()
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, strides, strict=True))
    flat = tensor.as_strided((last + 1 if tensor.numel() else 0,), (1,))
    bits = _BITS.get(tensor.dtype)
    return (flat if bits is None else flat.view(bits)).numpy(), strides[:-1]


def _check(
    queries: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    context_lengths: Tensor,
    query_starts: Tensor,
    window: int | None,
    softcap: float | None,
) -> None:
    pass


def _raise_fault(
    row: int, column: int, tables: Tensor, lengths: Tensor, query_starts: Tensor, cache: torch.Size
) -> NoReturn:
    if column == -2:
        raise ValueError(
            f"query_starts is {query_starts.tolist()}: it must begin at 0, never fall and end at the number of queries"
        )
    if column == -1:
        room = tables.shape[1] * cache[1]
        raise ValueError(f"context_lengths[{row}] is {int(lengths[row])}, allowed 0 to {room}, what its table holds")
    block = int(tables[row, column])
    raise ValueError(f"block_tables[{row}, {column}] is {block}, allowed 0 to {cache[0] - 1}: it's inside the length")
