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
from llvmlite.binding import get_host_cpu_features
from numba import njit, prange, types
from numba.core import cgutils
from numba.extending import intrinsic, overload
from torch import Tensor

from ._checks import check_inputs, check_starts

SPLIT = 256  # tokens of context in one decode work item: fixed, so a row's sums never depend on its company
TILE = 64  # query rows (queries times the heads that share a K and V) in one prefill work item
STEP = 64  # keys that a prefill tile takes at a time
LANES = 16  # scores that decode treats at a time
# What a row of sums takes of the vector registers at a time: AVX-512 has 32 of them, of 64 bytes each.
VECTOR_BYTES = 256 if get_host_cpu_features().get("avx512f") else 64
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


def _widened(builder, value, kind):
    """The float that a loaded value stands for."""
    if kind == types.int16:
        return builder.fpext(builder.bitcast(value, ir.HalfType()), ir.FloatType())
    if kind == types.uint16:  # bfloat16 is the upper half of a float32
        bits = builder.shl(builder.zext(value, ir.IntType(32)), ir.IntType(32)(16))
        return builder.bitcast(bits, ir.FloatType())
    return value


@intrinsic
def _at(typing_context, array, index):
    """`array[index]` as a float, 16-bit values widened. No test for a negative index: it would cost the loops
    around it their vector loads."""

    def codegen(context, builder, signature, arguments):
        data = context.make_array(array)(context, builder, arguments[0]).data
        return _widened(builder, builder.load(builder.gep(data, [arguments[1]])), array.dtype)

    number = array.dtype if isinstance(array.dtype, types.Float) else types.float32
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


# ---- the plan: work items of bounded size, shared out among threads ------------------------------------


@njit(**ENTRY)
def _first_fault(tables, lengths, block_size, num_blocks):
    """(row, column) of the first bad block id; column -1: bad length; (-1, 0): none."""
    for row in range(lengths.size):
        if lengths[row] < 0 or lengths[row] > tables.shape[1] * block_size:
            return row, -1
        for column in range((lengths[row] + block_size - 1) // block_size):
            if tables[row, column] < 0 or tables[row, column] >= num_blocks:
                return row, column
    return -1, 0


@njit(**ENTRY)
def _plan(lengths, query_starts, num_heads, num_kv_heads, window):
    """Work items, and where each sequence's splits start among them.

    Columns: sequence, its length, its first query, how many it has, KV head, first token or query row,
    cost. A sequence with one query is split over its tokens, for all heads (head -1); any other is tiled over
    the query rows of each head of K and V. All splits come first.
    """
    group, most = num_heads // num_kv_heads, 0
    for row in range(lengths.size):
        rows = (query_starts[row + 1] - query_starts[row]) * group
        most += lengths[row] // SPLIT + 1 + (rows // TILE + 1) * num_kv_heads
    items, first_split, count = np.empty((most, 7), np.int64), np.empty(lengths.size + 1, np.int64), 0
    for row in range(lengths.size):
        first_split[row] = count
        end = np.int64(lengths[row] if query_starts[row + 1] - query_starts[row] == 1 else 0)
        token = max(0, end - window)
        while token < end:
            until = min(end, (token // SPLIT + 1) * SPLIT)
            items[count, 0], items[count, 4], items[count, 5] = row, -1, token
            items[count, 6] = (until - token) * num_heads
            token, count = until, count + 1
    first_split[lengths.size] = count
    for row in range(lengths.size):
        new = np.int64(query_starts[row + 1] - query_starts[row])
        for kv_head in range(num_kv_heads if new > 1 else 0):
            for first in range(0, new * group, TILE):
                reach = min(lengths[row] - new + (first + TILE) // group, lengths[row])
                items[count, 0], items[count, 4], items[count, 5] = row, kv_head, first
                items[count, 6] = max(0, min(reach, window + TILE // group)) * TILE
                count += 1
    for item in range(count):
        row = items[item, 0]
        items[item, 1], items[item, 2] = lengths[row], query_starts[row]
        items[item, 3] = query_starts[row + 1] - query_starts[row]
    return items[:count], first_split


@njit(**ENTRY)
def _share(items, threads, smallest):
    """The first item of each worker, and the end: consecutive items of about equal total cost."""
    total = 0
    for item in range(items.shape[0]):
        total += items[item, 6]
    workers = max(1, min(threads, total // smallest))
    starts = np.full(workers + 1, items.shape[0])
    done, worker = 0, 0
    for item in range(items.shape[0]):
        while worker < workers and done * workers >= total * worker:
            starts[worker] = item
            worker += 1
        done += items[item, 6]
    return starts


@njit(**FAST)
def _locate(offsets, table, first, last, block_size, block_stride, token_stride, shift):
    """offsets[i] = where token first + i starts in the flat cache; four more repeat the last one."""
    token = first
    while token < last:
        inside = token % block_size
        start = table[token // block_size] * block_stride + inside * token_stride + shift
        for i in range(min(block_size - inside, last - token)):
            offsets[token - first + i] = start + i * token_stride
        token += block_size - inside
    for i in range(last - first, offsets.size):
        offsets[i] = offsets[last - first - 1]


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
    for i in range(count, end):
        line[i] = -np.inf
    for j in range(LANES):
        lanes[j] = -np.inf
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
def _mix_split(parts, weights, values, offsets, count, num_kv_heads, head_stride):
    """parts[h] += the weighted sum of the values; the last two numbers of a part are not for values."""
    num_heads, head_dim = parts.shape[0], parts.shape[1] - 2
    group = num_heads // num_kv_heads
    for i in range(0, count, 4):
        for kv_head in range(num_kv_heads):
            shift = kv_head * head_stride
            _fetch_four(values, offsets[i + AHEAD :], shift, head_dim)
            for head in range(kv_head * group, (kv_head + 1) * group):
                total = parts[head][:head_dim]
                _add_four(total, weights[head, i : i + 4], values, offsets[i : i + 4], shift)


# ---- prefill ---------------------------------------------------------------------------------------------


@intrinsic
def _add_products(typing_context, out, first, rows, cache, starts, steps, depth):
    """For u < 4: out[first + u][:] += sum over k < depth of cache[starts[first + u] + steps[k]] * rows[k][:].

    out and rows have TILE numbers a row. Four rows of sums stay in vector registers while k runs: that no
    compiler gets out of plain loops, and it makes three times the speed.
    """

    def codegen(context, builder, signature, arguments):
        def data(which):
            return context.make_array(signature.args[which])(context, builder, arguments[which]).data

        index, number = ir.IntType(64), data(0).type.pointee
        lanes = VECTOR_BYTES // (context.get_abi_sizeof(number))
        vector, undefined = (
            ir.VectorType(number, lanes),
            ir.Constant(ir.VectorType(number, lanes), ir.Undefined),
        )
        everywhere = ir.Constant(ir.VectorType(ir.IntType(32), lanes), None)

        def piece(array, row, lane):  # the address of `lanes` numbers of a row
            place = builder.add(builder.mul(row, index(TILE)), lane)
            return builder.bitcast(builder.gep(data(array), [place]), vector.as_pointer())

        out_rows = [builder.add(arguments[1], index(u)) for u in range(4)]
        places = [builder.gep(data(3), [builder.load(builder.gep(data(4), [row]))]) for row in out_rows]
        sums = [cgutils.alloca_once(builder, vector) for _ in range(4)]
        with cgutils.for_range_slice(builder, index(0), index(TILE), index(lanes)) as (lane, _):
            for row, total in zip(out_rows, sums, strict=True):
                builder.store(builder.load(piece(0, row, lane), align=4), total)
            with cgutils.for_range(builder, arguments[6]) as loop:
                numbers = builder.load(piece(2, loop.index, lane), align=4)
                step = builder.load(builder.gep(data(5), [loop.index]))
                for place, total in zip(places, sums, strict=True):
                    factor = _widened(builder, builder.load(builder.gep(place, [step])), cache.dtype)
                    factor = builder.insert_element(undefined, factor, ir.IntType(32)(0))
                    factor = builder.shuffle_vector(factor, undefined, everywhere)
                    product = builder.fmul(factor, numbers, flags=["contract"])
                    builder.store(builder.fadd(builder.load(total), product, flags=["contract"]), total)
            for row, total in zip(out_rows, sums, strict=True):
                builder.store(builder.load(total), piece(0, row, lane), align=4)
        return context.get_dummy_value()

    return types.void(out, types.intp, rows, cache, starts, steps, types.intp), codegen


@njit(**FAST)
def _mask_step(scores, first_key, count, positions, window):
    for i in range(count):
        line, key = scores[i * TILE : (i + 1) * TILE], first_key + i
        for j in range(TILE):
            hidden = key > positions[j] or key <= positions[j] - window
            line[j] = -np.inf if hidden else line[j]


@njit(**FAST)
def _weigh_step(scores, count, maxima, sums, rescale, highest):
    """Online softmax: scores become weights against the new maximum; earlier sums owe `rescale`."""
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
def _add_seen(totals, weights, values, offsets, count, head_dim):
    """totals[d][j] += value i, number d, times the weight of key i for row j, unless it is 0: a hidden
    value may be NaN, and 0 times NaN is NaN."""
    for i in range(count):
        line = weights[i * TILE : (i + 1) * TILE]
        for d in range(head_dim):
            factor, total = _at(values, offsets[i] + d), totals[d * TILE : (d + 1) * TILE]
            for j in range(TILE):
                total[j] += factor * line[j] if line[j] != 0 else total.dtype.type(0)


# ---- both ------------------------------------------------------------------------------------------------


@njit(**INNER)
def _do_split(parts, length, first_query, start, queries, keys, values, table, layout, scale, softcap):
    """One query against the tokens from `start` to the end of its split, all heads.

    parts[h]: the weighted sum of the values, then the largest score, then the sum of the weights.
    """
    block_size, num_kv_heads, _, q_token, q_head, k_block, k_token, k_head, v_block, v_token, v_head = layout
    num_heads, head_dim, number = parts.shape[0], parts.shape[1] - 2, parts.dtype
    query, scores = np.empty((num_heads, head_dim), number), np.empty((num_heads, SPLIT), number)
    offsets, lanes = np.empty(SPLIT + AHEAD + 4, np.int64), np.empty(LANES, number)
    end = min(length, (start // SPLIT + 1) * SPLIT)
    count = end - start
    for head in range(num_heads):
        for d in range(head_dim):
            query[head, d] = _at(queries, first_query * q_token + head * q_head + d) * scale
            parts[head, d] = 0
    _locate(offsets, table, start, end, block_size, k_block, k_token, 0)
    _score_split(scores, query, keys, offsets, count, num_kv_heads, k_head)
    for head in range(num_heads):
        parts[head, head_dim], parts[head, head_dim + 1] = _weigh_split(scores[head], count, softcap, lanes)
    _locate(offsets, table, start, end, block_size, v_block, v_token, 0)
    _mix_split(parts, scores, values, offsets, count, num_kv_heads, v_head)


@njit(**INNER)
def _do_tile(
    out, length, first_query, new, kv_head, start, queries, keys, values, table, layout, scale, softcap
):
    """TILE query rows from `start` on against every key that one of them sees, in steps."""
    block_size, num_kv_heads, window, q_token, q_head, k_block, k_token, k_head, v_block, v_token, v_head = (
        layout
    )
    group, head_dim, number = out.shape[1] // num_kv_heads, out.shape[2], out.dtype
    padded = (head_dim + 3) // 4 * 4
    query, totals, scores = (
        np.empty(head_dim * TILE, number),
        np.empty(padded * TILE, number),
        np.empty(STEP * TILE, number),
    )
    maxima, sums, rescale, highest = (
        np.empty(TILE, number),
        np.empty(TILE, number),
        np.empty(TILE, number),
        np.empty(TILE, number),
    )
    positions, offsets, dims = (
        np.empty(TILE, np.int64),
        np.empty(STEP + 4, np.int64),
        np.empty(padded, np.int64),
    )
    for j in range(TILE):  # rows past the end repeat the last one, and are not written out
        row = min(start + j, new * group - 1)
        positions[j], maxima[j], sums[j] = length - new + row // group, -np.inf, 0
        place = (first_query + row // group) * q_token + (kv_head * group + row % group) * q_head
        for d in range(head_dim):
            query[d * TILE + j] = _at(queries, place + d) * scale
    for d in range(padded):
        dims[d] = min(d, head_dim - 1)
        for j in range(TILE):
            totals[d * TILE + j] = 0
    first, last = positions[0], positions[TILE - 1]
    key = max(0, first - window + 1)
    while key <= last:
        until = min(key + STEP, last + 1)
        if key <= last - window:
            until = min(until, last - window + 1)
        elif key <= first:
            until = min(until, first + 1)
        count, all_seen = until - key, key > last - window and until <= first + 1
        _locate(offsets, table, key, until, block_size, k_block, k_token, kv_head * k_head)
        for x in range(STEP * TILE):
            scores[x] = 0
        for i in range(0, count, 4):
            _add_products(scores, i, query, keys, offsets, dims, head_dim)
        if softcap > 0:
            for x in range(count * TILE):
                scores[x] = softcap * _tanh(scores[x] / softcap)
        if not all_seen:
            _mask_step(scores, key, count, positions, window)
        _weigh_step(scores, count, maxima, sums, rescale, highest)
        for d in range(head_dim):
            for j in range(TILE):
                totals[d * TILE + j] *= rescale[j]
        _locate(offsets, table, key, until, block_size, v_block, v_token, kv_head * v_head)
        if all_seen:
            for d in range(0, head_dim, 4):
                _add_products(totals, d, scores, values, dims, offsets, count)
        else:
            _add_seen(totals, scores, values, offsets, count, head_dim)
        key = until
    for j in range(min(TILE, new * group - start)):
        row = start + j
        line = out[first_query + row // group, kv_head * group + row % group]
        for d in range(head_dim):
            line[d] = totals[d * TILE + j] / sums[j] if positions[j] >= 0 else 0


@njit(**ENTRY)
def _work(items, begin, end, out, parts, queries, keys, values, tables, layout, scale, softcap):
    """Do items begin to end: a split fills its row of parts, a tile its rows of out."""
    for item in range(begin, end):
        row, length, first_query, new, kv_head, start, _ = items[item]
        if kv_head < 0:
            _do_split(
                parts[item],
                length,
                first_query,
                start,
                queries,
                keys,
                values,
                tables[row],
                layout,
                scale,
                softcap,
            )
        else:
            _do_tile(
                out,
                length,
                first_query,
                new,
                kv_head,
                start,
                queries,
                keys,
                values,
                tables[row],
                layout,
                scale,
                softcap,
            )


@njit(parallel=True, **ENTRY)
def _work_in_threads(items, shares, out, parts, queries, keys, values, tables, layout, scale, softcap):
    for worker in prange(shares.size - 1):
        _work(
            items,
            shares[worker],
            shares[worker + 1],
            out,
            parts,
            queries,
            keys,
            values,
            tables,
            layout,
            scale,
            softcap,
        )


@njit(**ENTRY)
def _merge(out, parts, query_starts, first_split):
    """The splits of each row, each with its own maximum, become one softmax; no split gives zeros."""
    head_dim = out.shape[2]
    for row in range(first_split.size - 1):
        first, last = first_split[row], first_split[row + 1]
        for head in range(out.shape[1] if query_starts[row + 1] - query_starts[row] == 1 else 0):
            line, highest, whole = out[query_starts[row], head], out.dtype.type(-np.inf), out.dtype.type(0)
            for d in range(head_dim):
                line[d] = 0
            for item in range(first, last):
                highest = max(highest, parts[item, head, head_dim])
            for item in range(first, last):
                share = _exp(parts[item, head, head_dim] - highest)
                whole += share * parts[item, head, head_dim + 1]
                for d in range(head_dim):
                    line[d] += share * parts[item, head, d]
            for d in range(head_dim if last > first else 0):
                line[d] /= whole


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
    context_lengths: int32 [batch], tokens in the cache, the query's own too. Returns [batch, num_heads,
    head_dim] in the dtype of queries; float16 and bfloat16 are summed in float32. A row's result has the same
    bits in any batch, in any blocks, on any number of threads.

    Raises ValueError where a shape, dtype, stride, length or block id is not as said, before reading any.
    """
    check_inputs(queries, key_cache, value_cache, block_tables, context_lengths, window, softcap)
    _check_cpu(queries)
    if len(queries) != len(block_tables):
        raise ValueError(f"queries: {len(queries)} rows, but block_tables has {len(block_tables)}")
    query_starts = torch.arange(queries.shape[0] + 1, dtype=torch.int32)
    rows = (block_tables, context_lengths, query_starts)
    return _attend(queries, key_cache, value_cache, *rows, scale, window, softcap)


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
    check_inputs(queries, key_cache, value_cache, block_tables, context_lengths, window, softcap)
    _check_cpu(queries)
    longest = len(queries) if max_query_length is None else max_query_length
    check_starts(query_starts, len(block_tables), len(queries), longest, queries.device)
    rows = (block_tables, context_lengths, query_starts)
    return _attend(queries, key_cache, value_cache, *rows, scale, window, softcap)


def _check_cpu(queries: Tensor) -> None:
    if queries.device.type != "cpu":
        raise ValueError(f"queries: on {queries.device}, must be on the CPU")


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
    compute = _COMPUTE.get(queries.dtype, queries.dtype)
    number = np.float32 if compute == torch.float32 else np.float64
    _, num_heads, head_dim = queries.shape
    num_blocks, block_size, num_kv_heads, _ = key_cache.shape
    tables, lengths = block_tables.contiguous().numpy(), context_lengths.contiguous().numpy()
    starts = query_starts.contiguous().numpy()
    row, column = _first_fault(tables, lengths, block_size, num_blocks)
    if row >= 0:
        _raise_fault(row, column, block_tables, context_lengths, key_cache.shape)
    reach = 2**62 if window is None else window
    items, first_split = _plan(lengths, starts, num_heads, num_kv_heads, reach)
    shares = _share(items, torch.get_num_threads(), WORTH_A_THREAD // (2 * head_dim))
    (q, q_strides), (k, k_strides), (v, v_strides) = (
        _flat(queries.to(compute)),
        _flat(key_cache),
        _flat(value_cache),
    )
    layout = (block_size, num_kv_heads, reach, *q_strides, *k_strides, *v_strides)
    out = torch.empty(queries.shape, dtype=compute)
    result, parts = out.numpy(), np.empty((int(first_split[-1]), num_heads, head_dim + 2), number)
    rest = (result, parts, q, k, v, tables, layout, number(scale), number(softcap or 0))
    if shares.size > 2:
        with _launch_lock:
            _work_in_threads(items, shares, *rest)
    else:
        _work(items, 0, items.shape[0], *rest)
    _merge(result, parts, starts, first_split)
    result[starts[-1] :] = 0  # rows that belong to no sequence
    return out.to(queries.dtype)


def _flat(tensor: Tensor) -> tuple[Any, tuple[int, ...]]:
    """The memory from a view's first element to its last as a 1-D array, and the view's strides."""
    strides = tensor.stride()
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, strides, strict=True))
    flat = tensor.as_strided((last + 1 if tensor.numel() else 0,), (1,))
    bits = _BITS.get(tensor.dtype)
    return (flat if bits is None else flat.view(bits)).numpy(), strides[:-1]


def _raise_fault(row: int, column: int, tables: Tensor, lengths: Tensor, cache: torch.Size) -> NoReturn:
    if column == -1:
        room = tables.shape[1] * cache[1]
        raise ValueError(f"context_lengths: {int(lengths[row])}, block_tables holds 0 to {room} tokens")
    block = int(tables[row, column])
    raise ValueError(f"block_tables: block {block}, the cache has blocks 0 to {cache[0] - 1}")
