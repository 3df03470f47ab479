"""Paged attention compiled for the CPU with Numba: K and V are read in place, through the block tables.

Twin: reference/attention.py; kernels/attention.py has the same two functions for a GPU.
Docs page: docs/concepts/attention.md.

Decode is bound by memory: a work item, a split, reads a run of tokens once, for all heads. Prefill is bound
by arithmetic: a work item, a tile, keeps TILE query rows transposed, so that a number of K or V is multiplied
with TILE numbers at once. Numba compiles plain loops; the three that take nearly all the time are written as
vector code, since LLVM gets a third of its speed out of a plain one.
"""

import math
import threading
from functools import partial
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
LANES = 16  # scores that decode takes the maximum of side by side
AHEAD = 16  # tokens between the one being read and the one being fetched into the caches
WORTH_A_THREAD = 200_000  # multiply-adds: waking a thread for fewer costs more than it saves

VECTOR = 64  # bytes that decode takes at a time; LLVM makes several registers of it where they are smaller
# Bytes of each row of sums that a tile holds in registers: AVX-512 has 32 registers of 64 bytes.
PIECE = 256 if get_host_cpu_features().get("avx512f") else 64

# Sums may be reordered and fused. NaN and infinity keep their meaning: -inf stands for a masked score.
INNER: dict[str, Any] = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
FAST: dict[str, Any] = {"fastmath": {"contract", "nsz", "reassoc"}, "forceinline": True} | INNER
EXACT: dict[str, Any] = {"fastmath": {"contract"}, "forceinline": True} | INNER
ENTRY: dict[str, Any] = {"error_model": "numpy", "nogil": True, "cache": True}

_COMPUTE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
# An empty array tells the kernels what the cache holds. Numba's CPU target has no 16-bit floats:
# integer types stand for them.
_KINDS = {torch.float16: np.empty(0, np.int16), torch.bfloat16: np.empty(0, np.uint16)}
_KINDS |= {torch.float32: np.empty(0, np.float32), torch.float64: np.empty(0, np.float64)}
_launch_lock = threading.Lock()  # Numba's fallback threading layer doesn't bear two callers at once


# ---- functions that a loop can be vectorised over ------------------------------------------------------


def _exp(x):
    """exp(x) for x <= 0; -inf gives exactly 0, NaN gives NaN."""


@overload(_exp, jit_options=EXACT)
def _exp_overload(x):
    return _exp_float32 if x == types.float32 else lambda x: math.exp(x)


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


# ---- vector code ---------------------------------------------------------------------------------------


@intrinsic
def _pointer(typing_context, address, kind):
    """An address as a pointer to numbers of an array's dtype."""

    def codegen(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(kind.dtype)(types.int64, kind), codegen


def _start(context, builder, signature, arguments, which):
    """The pointer that an argument is, or that an array argument holds."""
    kind, value = signature.args[which], arguments[which]
    return (
        value if isinstance(kind, types.CPointer) else context.make_array(kind)(context, builder, value).data
    )


def _number(builder, pointer, index):
    return builder.load(builder.gep(pointer, [index]))


def _load(builder, kind, pointer, index, lanes):
    """`lanes` numbers of the Numba type `kind`, from pointer[index] on, as a vector of floats."""
    vector, floats = ir.VectorType(pointer.type.pointee, lanes), ir.VectorType(ir.FloatType(), lanes)
    address = builder.bitcast(builder.gep(pointer, [index]), vector.as_pointer())
    numbers = builder.load(address, align=2)
    if kind == types.int16:  # float16
        return builder.fpext(builder.bitcast(numbers, ir.VectorType(ir.HalfType(), lanes)), floats)
    if kind == types.uint16:  # bfloat16, the upper half of a float32
        wide = builder.zext(numbers, ir.VectorType(ir.IntType(32), lanes))
        return builder.bitcast(builder.shl(wide, ir.Constant(wide.type, [16] * lanes)), floats)
    return numbers


def _store(builder, vector, pointer, index):
    address = builder.bitcast(builder.gep(pointer, [index]), vector.type.as_pointer())
    builder.store(vector, address, align=4)


def _shuffle(builder, a, b, lanes):
    """A vector of the named lanes of a, whose numbers b's go on from."""
    picks = ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), list(lanes))
    return builder.shuffle_vector(a, b, picks)


def _spread(builder, number, lanes):
    """A vector with the number in all lanes."""
    nothing = ir.Constant(ir.VectorType(number.type, lanes), ir.Undefined)
    return _shuffle(builder, builder.insert_element(nothing, number, ir.IntType(32)(0)), nothing, [0] * lanes)


def _add_product(builder, total, a, b):
    """*total += a * b"""
    product = builder.fmul(a, b, flags=["contract"])
    builder.store(builder.fadd(builder.load(total), product, flags=["contract"]), total)


@intrinsic
def _at(typing_context, cache, index):
    """cache[index] as a float."""

    def codegen(context, builder, signature, arguments):
        vector = _load(builder, cache.dtype, arguments[0], arguments[1], 1)
        return builder.extract_element(vector, ir.IntType(32)(0))

    number = types.float32 if cache.dtype in types.integer_domain else cache.dtype
    return number(cache, types.int64), codegen


@intrinsic
def _fetch(typing_context, cache, start, depth):
    """Begin to bring cache[start : start + depth] near; harmless where there is no such memory."""

    def codegen(context, builder, signature, arguments):
        byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        line = arguments[1].type(64 * 8 // cache.dtype.bitwidth)
        with cgutils.for_range_slice(builder, line.type(0), arguments[2], line) as (d, _):
            address = builder.bitcast(builder.gep(arguments[0], [builder.add(arguments[1], d)]), byte)
            builder.call(prefetch, [address, flag(0), flag(3), flag(1)])  # to read, keep it close, data
        return context.get_dummy_value()

    return types.void(cache, types.int64, types.int64), codegen


@intrinsic
def _dots(typing_context, sums, place, query, first, cache, starts, i, shift, depth):
    """sums[place + u] = sum over d of query[first + d] * cache[starts[i + u] + shift + d], for u = 0 to 3.

    d runs to depth, a multiple of the numbers in a vector.
    """

    def codegen(context, builder, signature, arguments):
        start = partial(_start, context, builder, signature, arguments)
        _, place, _, first, _, _, i, shift, depth = arguments
        index, lanes = i.type, VECTOR * 8 // sums.dtype.bitwidth
        vector = ir.VectorType(start(0).type.pointee, lanes)
        rows = [builder.add(_number(builder, start(5), builder.add(i, index(u))), shift) for u in range(4)]
        totals = [cgutils.alloca_once(builder, vector) for _ in rows]
        for total in totals:
            builder.store(ir.Constant(vector, [0.0] * lanes), total)
        with cgutils.for_range_slice(builder, index(0), depth, index(lanes)) as (d, _):
            numbers = _load(builder, query.dtype, start(2), builder.add(first, d), lanes)
            for row, total in zip(rows, totals, strict=True):
                others = _load(builder, cache.dtype, start(4), builder.add(row, d), lanes)
                _add_product(builder, total, numbers, others)

        def neighbours(a, b, lanes):  # added up: first those of a, then those of b
            even, odd = (_shuffle(builder, a, b, range(s, 2 * lanes, 2)) for s in (0, 1))
            return builder.fadd(even, odd)

        a, b, c, d = (builder.load(total) for total in totals)
        four = neighbours(neighbours(a, b, lanes), neighbours(c, d, lanes), lanes)
        while four.type.count > 4:
            four = neighbours(four, four, four.type.count // 2)
        _store(builder, four, start(0), place)
        return context.get_dummy_value()

    index = types.int64
    return types.void(sums, index, query, index, cache, starts, index, index, index), codegen


@intrinsic
def _add_rows(typing_context, total, place, weights, first, cache, starts, i, shift, depth):
    """total[place + d] += sum over u = 0 to 3 of weights[first + u] * cache[starts[i + u] + shift + d].

    d runs to depth, a multiple of the numbers in a vector.
    """

    def codegen(context, builder, signature, arguments):
        start = partial(_start, context, builder, signature, arguments)
        _, place, _, first, _, _, i, shift, depth = arguments
        index, lanes = i.type, VECTOR * 8 // total.dtype.bitwidth
        rows = [builder.add(_number(builder, start(5), builder.add(i, index(u))), shift) for u in range(4)]
        factors = [_number(builder, start(2), builder.add(first, index(u))) for u in range(4)]
        factors = [_spread(builder, factor, lanes) for factor in factors]
        register = cgutils.alloca_once(builder, factors[0].type)
        with cgutils.for_range_slice(builder, index(0), depth, index(lanes)) as (d, _):
            here = builder.add(place, d)
            builder.store(_load(builder, total.dtype, start(0), here, lanes), register)
            for row, factor in zip(rows, factors, strict=True):
                numbers = _load(builder, cache.dtype, start(4), builder.add(row, d), lanes)
                _add_product(builder, register, factor, numbers)
            _store(builder, builder.load(register), start(0), here)
        return context.get_dummy_value()

    index = types.int64
    return types.void(total, index, weights, index, cache, starts, index, index, index), codegen


@intrinsic
def _add_products(typing_context, out, first, rows, cache, starts, steps, depth):
    """out[first + u][:] += sum over k of cache[starts[first + u] + steps[k]] * rows[k][:], for u = 0 to 3.

    k runs to depth; out and rows have TILE numbers a row.
    """

    def codegen(context, builder, signature, arguments):
        start = partial(_start, context, builder, signature, arguments)
        _, first, _, _, _, _, depth = arguments
        index, lanes = first.type, PIECE * 8 // out.dtype.bitwidth
        out_rows = [builder.add(first, index(u)) for u in range(4)]
        places = [_number(builder, start(4), row) for row in out_rows]
        totals = [cgutils.alloca_once(builder, ir.VectorType(start(0).type.pointee, lanes)) for _ in range(4)]
        with cgutils.for_range_slice(builder, index(0), index(TILE), index(lanes)) as (j, _):
            here = [builder.add(builder.mul(row, index(TILE)), j) for row in out_rows]
            for place, total in zip(here, totals, strict=True):
                builder.store(_load(builder, out.dtype, start(0), place, lanes), total)
            with cgutils.for_range(builder, depth) as loop:
                place = builder.add(builder.mul(loop.index, index(TILE)), j)
                numbers = _load(builder, rows.dtype, start(2), place, lanes)
                step = _number(builder, start(5), loop.index)
                for row, total in zip(places, totals, strict=True):
                    factor = _load(builder, cache.dtype, start(3), builder.add(row, step), 1)
                    factor = _spread(builder, builder.extract_element(factor, ir.IntType(32)(0)), lanes)
                    _add_product(builder, total, factor, numbers)
            for place, total in zip(here, totals, strict=True):
                _store(builder, builder.load(total), start(0), place)
        return context.get_dummy_value()

    return types.void(out, types.int64, rows, cache, starts, steps, types.int64), codegen


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

    Columns: sequence, its length, its first query, how many it has, head of K and V, first token or query
    row, cost. A sequence with one query is split over its tokens, for all heads (head -1); any other is tiled
    over the query rows of each head of K and V. All splits come first.
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
def _locate(offsets, table, first, last, block_size, strides, shift):
    """offsets[i] = where in the cache token first + i starts; those to spare repeat the last one."""
    token = first
    while token < last:
        inside = token % block_size
        start = table[token // block_size] * strides[1] + inside * strides[2] + shift
        for i in range(min(block_size - inside, last - token)):
            offsets[token - first + i] = start + i * strides[2]
        token += block_size - inside
    for i in range(last - first, offsets.size):
        offsets[i] = offsets[last - first - 1]


# ---- decode --------------------------------------------------------------------------------------------


@njit(**FAST)
def _score_split(scores, query, keys, offsets, count, num_heads, num_kv_heads, head_stride):
    """scores[h][i] = query head h times key i."""
    head_dim, group = query.size // num_heads, num_heads // num_kv_heads
    whole = head_dim - head_dim % (VECTOR // query.itemsize)
    for i in range(0, count, 4):
        for head in range(num_heads):
            shift, place, first = head // group * head_stride, head * SPLIT + i, head * head_dim
            for u in range(4 if head % group == 0 else 0):
                _fetch(keys, offsets[i + AHEAD + u] + shift, head_dim)
            _dots(scores, place, query, first, keys, offsets, i, shift, whole)
            for d in range(whole, head_dim):
                for u in range(4):
                    scores[place + u] += query[first + d] * _at(keys, offsets[i + u] + shift + d)


@njit(**FAST)
def _weigh_split(line, count, softcap, lanes):
    """Turn one head's scores into softmax weights, not yet divided by their sum; return maximum and sum."""
    if softcap > 0:
        for i in range(count):
            line[i] = softcap * _tanh(line[i] / softcap)
    end = (count + LANES - 1) // LANES * LANES
    for i in range(count, end):
        line[i] = -np.inf
    lanes[:] = -np.inf
    for i in range(0, end, LANES):  # many maxima side by side are vectorised, one is not
        for j in range(LANES):
            lanes[j] = line[i + j] if line[i + j] > lanes[j] else lanes[j]
    highest = lanes.max()
    shift = highest if highest > -np.inf else line.dtype.type(0)
    total = line.dtype.type(0)
    for i in range(end):
        line[i] = _exp(line[i] - shift)
        total += line[i]
    return highest, total


@njit(**FAST)
def _mix_split(part, weights, values, offsets, count, num_heads, num_kv_heads, head_stride):
    """part[h] += the sum of the values, each times its weight for head h."""
    width, group = part.size // num_heads, num_heads // num_kv_heads
    head_dim = width - 2
    whole = head_dim - head_dim % (VECTOR // part.itemsize)
    for i in range(0, count, 4):
        for head in range(num_heads):
            shift, place, first = head // group * head_stride, head * width, head * SPLIT + i
            for u in range(4 if head % group == 0 else 0):
                _fetch(values, offsets[i + AHEAD + u] + shift, head_dim)
            _add_rows(part, place, weights, first, values, offsets, i, shift, whole)
            for d in range(whole, head_dim):
                for u in range(4):
                    part[place + d] += weights[first + u] * _at(values, offsets[i + u] + shift + d)


@njit(**INNER)
def _do_split(part, item, kind, memory, table, sizes, scale, softcap):
    """A query against the tokens from the item's first to the end of their split, all heads.

    part, for each head: the weighted sum of the values, then the largest score, then the sum of the weights.
    """
    num_heads, num_kv_heads, block_size, _ = sizes
    _, length, row, _, _, start, _ = item
    head_dim = part.size // num_heads - 2
    query, scores = np.empty(num_heads * head_dim, part.dtype), np.empty(num_heads * SPLIT, part.dtype)
    lanes, offsets = np.empty(LANES, part.dtype), np.empty(SPLIT + AHEAD + 4, np.int64)
    queries, keys = _pointer(memory[0, 0], part), _pointer(memory[1, 0], kind)
    end = min(length, (start // SPLIT + 1) * SPLIT)
    for head in range(num_heads):
        place = row * memory[0, 2] + head * memory[0, 3]
        for d in range(head_dim):
            query[head * head_dim + d] = _at(queries, place + d) * scale
            part[head * (head_dim + 2) + d] = 0
    _locate(offsets, table, start, end, block_size, memory[1], 0)
    _score_split(scores, query, keys, offsets, end - start, num_heads, num_kv_heads, memory[1, 3])
    for head in range(num_heads):
        highest, total = _weigh_split(scores[head * SPLIT : (head + 1) * SPLIT], end - start, softcap, lanes)
        place = head * (head_dim + 2) + head_dim
        part[place], part[place + 1] = highest, total
    _locate(offsets, table, start, end, block_size, memory[2], 0)
    values = _pointer(memory[2, 0], kind)
    _mix_split(part, scores, values, offsets, end - start, num_heads, num_kv_heads, memory[2, 3])


# ---- prefill -------------------------------------------------------------------------------------------


@njit(**FAST)
def _mask_step(scores, first_key, count, positions, window):
    for i in range(count):
        line, key = scores[i * TILE : (i + 1) * TILE], first_key + i
        for j in range(TILE):
            hidden = key > positions[j] or key <= positions[j] - window
            line[j] = -np.inf if hidden else line[j]


@njit(**FAST)
def _weigh_step(scores, count, maxima, sums, rescale, highest):
    """Online softmax: scores become weights against the new maxima; `rescale` is owed by what came before."""
    highest[:] = maxima
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


@njit(**FAST)
def _load_tile(query, positions, item, queries, strides, group, scale):
    """The item's query rows, transposed, and their positions. Rows past the end repeat the last one."""
    _, length, first_query, new, kv_head, start, _ = item
    for j in range(TILE):
        row = min(start + j, new * group - 1)
        positions[j] = length - new + row // group
        place = (first_query + row // group) * strides[2] + (kv_head * group + row % group) * strides[3]
        for d in range(query.size // TILE):
            query[d * TILE + j] = _at(queries, place + d) * scale


@njit(**INNER)
def _do_tile(out, item, kind, memory, table, sizes, scale, softcap):
    """TILE query rows, from the item's first on, against every key that one of them sees."""
    num_heads, num_kv_heads, block_size, window = sizes
    _, _, first_query, new, kv_head, start, _ = item
    group, head_dim, number = num_heads // num_kv_heads, out.shape[2], out.dtype
    rows = (head_dim + 3) // 4 * 4  # of sums: _add_products takes four
    query, scores = np.empty(head_dim * TILE, number), np.empty(STEP * TILE, number)
    totals = np.zeros(rows * TILE, number)
    maxima, sums = np.full(TILE, -np.inf, number), np.zeros(TILE, number)
    rescale, highest = np.empty_like(sums), np.empty_like(sums)
    positions, offsets, dims = np.empty(TILE, np.int64), np.empty(STEP + 4, np.int64), np.arange(rows)
    dims[head_dim:] = head_dim - 1
    _load_tile(query, positions, item, _pointer(memory[0, 0], out), memory[0], group, scale)
    keys, values = _pointer(memory[1, 0], kind), _pointer(memory[2, 0], kind)
    first, last = positions[0], positions[TILE - 1]
    key = max(0, first - window + 1)
    while key <= last:
        until = min(key + STEP, last + 1)  # and no step crosses an edge of what all rows see
        if key <= last - window:
            until = min(until, last - window + 1)
        elif key <= first:
            until = min(until, first + 1)
        count = until - key
        _locate(offsets, table, key, until, block_size, memory[1], kv_head * memory[1, 3])
        scores[:] = 0
        for i in range(0, count, 4):
            _add_products(scores, i, query, keys, offsets, dims, head_dim)
        for x in range(count * TILE if softcap > 0 else 0):
            scores[x] = softcap * _tanh(scores[x] / softcap)
        all_seen = last - window < key <= first
        if not all_seen:
            _mask_step(scores, key, count, positions, window)
        _weigh_step(scores, count, maxima, sums, rescale, highest)
        for d in range(head_dim):
            for j in range(TILE):
                totals[d * TILE + j] *= rescale[j]
        _locate(offsets, table, key, until, block_size, memory[2], kv_head * memory[2, 3])
        for d in range(0, head_dim if all_seen else 0, 4):
            _add_products(totals, d, scores, values, dims, offsets, count)
        if not all_seen:
            _add_seen(totals, scores, values, offsets, count, head_dim)
        key = until
    for j in range(min(TILE, new * group - start)):
        row = start + j
        line = out[first_query + row // group, kv_head * group + row % group]
        for d in range(head_dim):
            line[d] = totals[d * TILE + j] / sums[j] if positions[j] >= 0 else 0


# ---- both ----------------------------------------------------------------------------------------------


@njit(**ENTRY)
def _work(items, begin, end, out, parts, kind, memory, tables, sizes, scale, softcap):
    """Do items begin to end: a split fills its row of parts, a tile its rows of out."""
    for i in range(begin, end):
        item = (items[i, 0], items[i, 1], items[i, 2], items[i, 3], items[i, 4], items[i, 5], items[i, 6])
        if items[i, 4] < 0:
            _do_split(parts[i], item, kind, memory, tables[items[i, 0]], sizes, scale, softcap)
        else:
            _do_tile(out, item, kind, memory, tables[items[i, 0]], sizes, scale, softcap)


@njit(parallel=True, **ENTRY)
def _work_in_threads(items, shares, out, parts, kind, memory, tables, sizes, scale, softcap):
    for i in prange(shares.size - 1):
        _work(items, shares[i], shares[i + 1], out, parts, kind, memory, tables, sizes, scale, softcap)


@njit(**ENTRY)
def _merge(out, parts, query_starts, first_split):
    """The splits of each row, each with its own maximum, become one softmax; no split gives zeros."""
    head_dim = out.shape[2]
    for row in range(first_split.size - 1):
        first, last = first_split[row], first_split[row + 1]
        for head in range(out.shape[1] if query_starts[row + 1] - query_starts[row] == 1 else 0):
            line, place = out[query_starts[row], head], head * (head_dim + 2)
            highest, whole = out.dtype.type(-np.inf), out.dtype.type(0)
            for d in range(head_dim):
                line[d] = 0
            for i in range(first, last):
                highest = max(highest, parts[i, place + head_dim])
            for i in range(first, last):
                share = _exp(parts[i, place + head_dim] - highest)
                whole += share * parts[i, place + head_dim + 1]
                for d in range(head_dim):
                    line[d] += share * parts[i, place + d]
            for d in range(head_dim if last > first else 0):
                line[d] /= whole


# ---- public functions ----------------------------------------------------------------------------------


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
    bits in any batch, in any blocks, on any number of threads; a row of length 0 gives zeros.

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
    (num_blocks, block_size, num_kv_heads, head_dim), num_heads = key_cache.shape, queries.shape[1]
    tables, lengths = block_tables.contiguous().numpy(), context_lengths.contiguous().numpy()
    starts = query_starts.contiguous().numpy()
    row, column = _first_fault(tables, lengths, block_size, num_blocks)
    if row >= 0:
        _raise_fault(row, column, block_tables, context_lengths, key_cache.shape)
    compute = _COMPUTE.get(queries.dtype, queries.dtype)
    number = np.float32 if compute == torch.float32 else np.float64
    wide = queries.to(compute)
    out = torch.empty(queries.shape, dtype=compute)
    views = (wide[None], key_cache, value_cache)
    memory = np.array(
        [(view.data_ptr(), *view.stride()[:3]) for view in views]
    )  # strides: block, token, head
    sizes = (num_heads, num_kv_heads, block_size, 2**62 if window is None else window)
    items, first_split = _plan(lengths, starts, num_heads, num_kv_heads, sizes[3])
    parts = np.empty((int(first_split[-1]), num_heads * (head_dim + 2)), number)
    result = out.numpy()
    result[: starts[0]], result[starts[-1] :] = 0, 0  # rows that belong to no sequence
    rest = (result, parts, _KINDS[queries.dtype], memory, tables, sizes, number(scale), number(softcap or 0))
    shares = _share(items, torch.get_num_threads(), WORTH_A_THREAD // (2 * head_dim))
    if len(shares) == 2:
        _work(items, 0, len(items), *rest)
    else:
        with _launch_lock:
            _work_in_threads(items, shares, *rest)
    _merge(result, parts, starts, first_split)
    return out.to(queries.dtype)


def _raise_fault(row: int, column: int, tables: Tensor, lengths: Tensor, cache: torch.Size) -> NoReturn:
    if column == -1:
        room = tables.shape[1] * cache[1]
        raise ValueError(f"context_lengths: {int(lengths[row])}, block_tables holds 0 to {room} tokens")
    raise ValueError(f"block_tables: block {tables[row, column]}, the cache has blocks 0 to {cache[0] - 1}")
