"""Paged attention compiled for the CPU with Numba: K and V are read in place, through the block tables.

Decode is bound by memory: a context is cut into splits, and each token of a split is read once for all heads.
Prefill is bound by arithmetic: a tile of 64 query rows, side by side, shares each number of K and V.
Twin: reference/attention.py; kernels/attention.py is the same for a GPU. Page: docs/concepts/attention.md.
Beside this file: _vector.py (sums of products), _work_items.py (splits and tiles, and who does them),
_cpu_arguments.py (tensors as arrays), _numba.py (how functions are compiled).
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch
from numba import prange
from torch import Tensor

from . import _vector as vector
from ._checks import check_inputs, check_one_query_each, check_starts
from ._cpu_arguments import Batch, Cache, Options, Partial, as_cache, as_options, as_queries, as_rows
from ._numba import entry, fast, inner, threaded_entry, unallocating
from ._work_items import SPLIT, TILE, WORTH_A_THREAD, load_rows, new_partials, plan_work, store_rows

STEP = 64  # keys that a tile folds in at a time: a multiple of 4, as SPLIT is of vector.LANES
AHEAD = 16  # tokens between the one being read and the one being fetched into the processor's caches
_launch_lock = threading.Lock()  # Numba's fallback threading layer doesn't bear two callers at once


# ---- decode: one query, all its heads, against the tokens of a split -------------------------------------


@unallocating
def _attend_split(
    partial: Partial, batch: Batch, keys: Cache, values: Cache, split: Any, options: Options,
    scores: Any, slots: Any,
) -> None:  # fmt: skip
    """Fill in the partial result of a split, [num_heads] and [num_heads, head_dim], four tokens at a time."""
    query = batch.queries[batch.query_starts[split.sequence]]
    table, count = batch.block_tables[split.sequence], split.end - split.first
    num_heads, head_dim = query.shape
    group = num_heads // keys.num_heads
    vector.visible_slots(slots, keys, table, split.first, split.end)
    for i in range(0, count, 4):
        for head in range(num_heads):
            kv_head_at = head // group * keys.head_stride
            if head % group == 0:
                vector.fetch_four(keys.numbers, i + AHEAD, slots, kv_head_at, head_dim)
            vector.dot_four(scores[head], i, query[head], keys.numbers, slots, kv_head_at)
    for head in range(num_heads):
        partial.maximum[head], partial.total[head] = _weigh(scores[head], count, options)
    partial.weighted[:] = 0
    vector.visible_slots(slots, values, table, split.first, split.end)
    for i in range(0, count, 4):
        for head in range(num_heads):
            kv_head_at = head // group * values.head_stride
            if head % group == 0:
                vector.fetch_four(values.numbers, i + AHEAD, slots, kv_head_at, head_dim)
            vector.add_four_rows(partial.weighted[head], scores[head], i, values.numbers, slots, kv_head_at)


@fast
def _weigh(scores: Any, count: int, options: Options) -> tuple[Any, Any]:
    """Turn scores into softmax weights, not yet divided by their sum; return the maximum and the sum."""
    scores = scores[: (count + vector.LANES - 1) // vector.LANES * vector.LANES]
    vector.finish_scores(scores[:count], options.scale, options.softcap)
    scores[count:] = -np.inf
    maximum, total = max(vector.largest(scores), vector.lowest(scores)), scores.dtype.type(0)  # never -inf
    for i in range(scores.size):
        scores[i] = vector.exp(scores[i] - maximum)
        total += scores[i]
    return maximum, total


@inner
def merge_partials(out: Any, partials: Partial, split_starts: Any, query_starts: Any) -> None:
    """Rescale the splits of each sequence to their largest maximum and add them up; none gives zeros."""
    for sequence in range(split_starts.size - 1):
        row, splits = query_starts[sequence], range(split_starts[sequence], split_starts[sequence + 1])
        for head in range(out.shape[1] if query_starts[sequence + 1] - row == 1 else 0):
            result, total, maximum = out[row, head], out.dtype.type(0), vector.lowest(out)
            result[:] = 0
            for split in splits:
                maximum = max(maximum, partials.maximum[split, head])
            for split in splits:
                rescale = vector.exp(partials.maximum[split, head] - maximum)
                total += rescale * partials.total[split, head]
                for d in range(result.size):
                    result[d] += rescale * partials.weighted[split, head, d]
            for d in range(result.size if len(splits) > 0 else 0):
                result[d] /= total


# ---- prefill: a tile of query rows of one KV head, against all that they see -----------------------------


@inner
def _attend_tile(out: Any, batch: Batch, keys: Cache, values: Cache, tile: Any, options: Options) -> None:
    """Attend from the rows of a tile, STEP keys at a time, and write the results to `out`."""
    head_dim, number, table = out.shape[2], out.dtype, batch.block_tables[tile.sequence]
    tokens, heads, positions, columns = load_rows(batch, tile, out.shape[1] // keys.num_heads)
    maximum, total = np.full(TILE, vector.lowest(columns), number), np.zeros(TILE, number)
    partial = Partial(maximum, total, np.zeros((head_dim, TILE), number))
    scores, rescale = np.empty((STEP, TILE), number), np.empty(TILE, number)
    slots = np.empty(STEP + 4, np.int64)
    keys_at, values_at = tile.kv_head * keys.head_stride, tile.kv_head * values.head_stride
    oldest, newest = positions[0], positions[TILE - 1]
    for first in range(max(0, oldest - options.window + 1), newest + 1, STEP):
        end = min(first + STEP, newest + 1)
        some_hidden = first <= newest - options.window or end - 1 > oldest
        vector.visible_slots(slots, keys, table, first, end)
        for i in range(0, end - first, 4):
            vector.dot_four_with_columns(scores, i, columns, keys.numbers, slots, keys_at)
        for i in range(end - first):
            vector.finish_scores(scores[i], options.scale, options.softcap)
            if some_hidden:
                vector.hide(scores[i], first + i, positions, options.window)
        vector.visible_slots(slots, values, table, first, end)
        fold_block(partial, scores[: end - first], values.numbers, slots, values_at, some_hidden, rescale)
    store_rows(out, partial, tile, tokens, heads, positions)


@fast
def fold_block(
    partial: Partial, scores: Any, values: Any, slots: Any, kv_head_at: int, some_hidden: bool, rescale: Any
) -> None:
    """Fold keys with scores [keys, TILE] into the running softmax; the scores become weights.

    The sums so far are relative to the old maximum: times exp(old - new) they are relative to the new one.
    """
    maximum, total, weighted = partial
    for j in range(TILE):
        rescale[j] = maximum[j]
    for i in range(scores.shape[0]):
        for j in range(TILE):
            maximum[j] = scores[i, j] if scores[i, j] > maximum[j] else maximum[j]
    for j in range(TILE):
        rescale[j] = vector.exp(rescale[j] - maximum[j])
        total[j] *= rescale[j]
    for i in range(scores.shape[0]):
        for j in range(TILE):
            scores[i, j] = vector.exp(scores[i, j] - maximum[j])
            total[j] += scores[i, j]
    for d in range(weighted.shape[0]):
        for j in range(TILE):
            weighted[d, j] *= rescale[j]
    for d in range(0, weighted.shape[0], 4):
        if some_hidden:  # a hidden value may be NaN
            vector.add_to_four_rows(weighted, d, scores, values, slots, kv_head_at, True)
        else:
            vector.add_to_four_rows(weighted, d, scores, values, slots, kv_head_at, False)


# ---- the call: work items one after the other, or shared out among threads -------------------------------


@inner
def _attend(first, end, out, batch, keys, values, options, items, partials):
    """Do the work items first to end - 1: a split fills its row of `partials`, a tile its rows of `out`."""
    (splits, tiles), (maximum, total, weighted) = items, partials
    # The tuples come without names, because Numba's parallel loops take none with names.
    batch, keys, values, options = Batch(*batch), Cache(*keys), Cache(*values), Options(*options)
    # More slots than tokens, since keys are read and fetched in fours.
    scores, slots = np.empty((out.shape[1], SPLIT), out.dtype), np.empty(SPLIT + AHEAD + 4, np.int64)
    for item in range(first, end):
        if item < splits.size:
            partial = Partial(maximum[item], total[item], weighted[item])
            _attend_split(partial, batch, keys, values, splits[item], options, scores, slots)
        else:
            _attend_tile(out, batch, keys, values, tiles[item - splits.size], options)


@entry
def _attend_alone(out: Any, batch: Any, keys: Any, values: Any, options: Any, limits: Any) -> bool:
    """Do all work in this thread, unless others are worth waking; return whether it was done."""
    items, split_starts, shares = plan_work(Batch(*batch), Cache(*keys), Options(*options), limits)
    if shares.size > 2:
        return False
    partials = new_partials(split_starts[-1], out)
    _attend(0, shares[1], out, batch, keys, values, options, items, partials)
    merge_partials(out, Partial(*partials), split_starts, Batch(*batch).query_starts)
    return True


@threaded_entry
def _attend_in_threads(out: Any, batch: Any, keys: Any, values: Any, options: Any, limits: Any) -> None:
    """Do all work, each thread the items of a share."""
    items, split_starts, shares = plan_work(Batch(*batch), Cache(*keys), Options(*options), limits)
    partials = new_partials(split_starts[-1], out)
    for worker in prange(shares.size - 1):
        first, end = shares[worker], shares[worker + 1]
        _attend(first, end, out, batch, keys, values, options, items, partials)
    merge_partials(out, Partial(*partials), split_starts, Batch(*batch).query_starts)


def decode_attention(
    queries: Tensor, key_cache: Tensor, value_cache: Tensor, block_tables: Tensor, context_lengths: Tensor,
    *, scale: float, window: int | None = None, softcap: float | None = None,
) -> Tensor:  # fmt: skip
    """One query per sequence against its cached keys and values (paper, section 4.1, equation 4).

    queries: [batch, num_heads, head_dim]. key_cache and value_cache: [num_blocks, block_size, num_kv_heads,
    head_dim]; the last stride must be 1. block_tables: int32 [batch, max_blocks].
    context_lengths: int32 [batch], tokens in the cache, the query's own too. Returns [batch, num_heads,
    head_dim] in the dtype of queries; float16 and bfloat16 are summed in float32. A row's result has the same
    bits in any batch, in any blocks, on any number of threads; a row of length 0 gives zeros.

    Raises ValueError or TypeError where an argument is not as said, before reading any.
    """
    check_inputs(queries, key_cache, value_cache, block_tables, context_lengths)
    check_one_query_each(queries, block_tables)
    rows = torch.arange(len(queries) + 1, dtype=torch.int32), block_tables, context_lengths
    return _launch(queries, key_cache, value_cache, rows, (scale, window, softcap))


def prefill_attention(
    queries: Tensor, key_cache: Tensor, value_cache: Tensor, block_tables: Tensor, context_lengths: Tensor,
    query_starts: Tensor, *, scale: float, window: int | None = None, softcap: float | None = None,
    max_query_length: int | None = None,
) -> Tensor:  # fmt: skip
    """Causal attention of each sequence's last tokens, whose keys and values are in the cache already.

    queries: [total_tokens, num_heads, head_dim]; rows query_starts[s] to query_starts[s + 1] are the last
    tokens of sequence s. query_starts: int32 [batch + 1]. max_query_length sizes a GPU's grid only. The rest
    is as in `decode_attention`, and a sequence with one query gets the very bits that it gives.
    """
    check_inputs(queries, key_cache, value_cache, block_tables, context_lengths)
    check_starts(query_starts, len(block_tables), queries, max_query_length)
    rows = query_starts, block_tables, context_lengths
    return _launch(queries, key_cache, value_cache, rows, (scale, window, softcap))


def _launch(queries: Tensor, key_cache: Tensor, value_cache: Tensor, rows: Any, options: Any) -> Tensor:
    if queries.device.type != "cpu":
        raise ValueError(f"queries: on {queries.device}, must be on the CPU")
    arrays = as_rows(rows, key_cache.shape)
    return attend(queries, as_cache(key_cache), as_cache(value_cache), arrays, options)


def attend(queries: Tensor, keys: Any, values: Any, rows: Any, options: Any) -> Tensor:
    """Attention of decodes and prefills, with keys and values by `as_cache`, and rows by `as_rows`."""
    (out, wide), starts = as_queries(queries), rows[0]
    out[: starts[0]], out[starts[-1] :] = 0, 0  # rows that belong to no sequence
    arguments = (wide, *rows), keys, values, as_options(options, out.dtype.type)
    limits = torch.get_num_threads(), WORTH_A_THREAD // out.shape[2]
    if not _attend_alone(out, *arguments, limits):
        with _launch_lock:
            _attend_in_threads(out, *arguments, limits)
    return torch.from_numpy(out).to(queries.dtype)
