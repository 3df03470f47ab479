"""How attention_cpu.py shares its work out: items of bounded size, and which thread does which of them.

A sequence with one query is cut into splits of its context. Any other is cut into tiles of its query rows: it
has a row for each query and each query head that shares the KV head. The cuts depend on the sequence
alone, so its results don't depend on its company or on the number of threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ._cpu_arguments import Batch, Cache, Options, Partial
from ._numba import inner

SPLIT = 256  # tokens of context at most in a split
TILE = 64  # query rows at most in a tile
WORTH_A_THREAD = 100_000  # multiply-adds with keys: waking a thread for fewer costs more than it saves

# The cost of an item is the number of its scores.
SPLIT_ITEM = np.dtype([(name, np.int64) for name in ("sequence", "first", "end", "cost")], align=True)
TILE_FIELDS = ("sequence", "kv_head", "first_row", "end_row", "cost")
TILE_ITEM = np.dtype([(name, np.int64) for name in TILE_FIELDS], align=True)


@inner
def plan_work(batch: Batch, keys: Cache, options: Options, limits: tuple[int, int]) -> tuple[Any, Any, Any]:
    """Cut a batch into items and share them out. limits: workers at most, and a cost that is worth one.

    Returns the splits and the tiles; where among the splits those of each sequence begin, and the end; and
    where among all items, splits first, those of each worker begin, and the end.
    """
    num_heads = batch.queries.shape[1]
    group, window = num_heads // keys.num_heads, options.window
    splits, split_starts = _cut_splits(batch.context_lengths, batch.query_starts, num_heads, window)
    tiles = _cut_tiles(batch.context_lengths, batch.query_starts, group, keys.num_heads, window)
    costs = np.concatenate((splits["cost"], tiles["cost"]))
    return (splits, tiles), split_starts, _share(costs, limits[0], limits[1])


@inner
def load_rows(batch: Batch, tile: Any, group: int) -> tuple[Any, Any, Any, Any]:
    """Each row's token, its query head and its position; and the rows as columns [head_dim, TILE].

    A query has `group` rows. Rows past the last one repeat it.
    """
    start, end = batch.query_starts[tile.sequence], batch.query_starts[tile.sequence + 1]
    tokens, heads, positions = np.empty(TILE, np.int64), np.empty(TILE, np.int64), np.empty(TILE, np.int64)
    columns = np.empty((batch.queries.shape[2], TILE), batch.queries.dtype)
    for j in range(TILE):
        row = min(tile.first_row + j, tile.end_row - 1)
        tokens[j], heads[j] = start + row // group, tile.kv_head * group + row % group
        positions[j] = batch.context_lengths[tile.sequence] - end + tokens[j]
        query = batch.queries[tokens[j], heads[j]]
        for d in range(query.size):
            columns[d, j] = query[d]
    return tokens, heads, positions, columns


@inner
def store_rows(out: Any, partial: Partial, tile: Any, tokens: Any, heads: Any, positions: Any) -> None:
    """Divide a tile's weighted sums [head_dim, TILE] by their totals, and write each row to its place."""
    _, total, weighted = partial
    for d in range(weighted.shape[0]):
        for j in range(TILE):
            weighted[d, j] /= total[j]
    for j in range(tile.end_row - tile.first_row):
        result = out[tokens[j], heads[j]]
        for d in range(result.size):
            result[d] = weighted[d, j] if positions[j] >= 0 else 0


@inner
def new_partials(num_splits: int, out: Any) -> tuple[Any, Any, Any]:
    """The fields of a Partial for the splits of `out`, [num_splits, num_heads] and with head_dim."""
    shape = num_splits, out.shape[1]
    return np.empty(shape, out.dtype), np.empty(shape, out.dtype), np.empty((*shape, out.shape[2]), out.dtype)


@inner
def _cut_splits(lengths, query_starts, num_heads, window):
    most = np.int64(lengths.sum()) // SPLIT + lengths.size
    splits, split_starts, count = np.empty(most, SPLIT_ITEM), np.zeros(lengths.size + 1, np.int64), 0
    for sequence in range(lengths.size):
        end = np.int64(lengths[sequence] if query_starts[sequence + 1] - query_starts[sequence] == 1 else 0)
        first = max(0, end - window)
        while first < end:
            until = min(end, (first // SPLIT + 1) * SPLIT)
            split = splits[count]
            split.sequence, split.first, split.end = sequence, first, until
            split.cost = (until - first) * num_heads
            first, count = until, count + 1
        split_starts[sequence + 1] = count
    return splits[:count], split_starts


@inner
def _cut_tiles(lengths, query_starts, group, num_kv_heads, window):
    most = (np.int64(query_starts[-1] - query_starts[0]) * group // TILE + lengths.size) * num_kv_heads
    tiles, count = np.empty(most, TILE_ITEM), 0
    for sequence in range(lengths.size):
        length, queries = lengths[sequence], np.int64(query_starts[sequence + 1] - query_starts[sequence])
        for kv_head in range(num_kv_heads if queries > 1 else 0):
            for row in range(0, queries * group, TILE):
                seen = min(length - queries + (row + TILE) // group, length, window + TILE // group)
                tile = tiles[count]
                tile.sequence, tile.kv_head = sequence, kv_head
                tile.first_row, tile.end_row = row, min(row + TILE, queries * group)
                tile.cost = max(0, seen) * TILE
                count += 1
    return tiles[:count]


@inner
def _share(costs, workers, enough):
    """The first item of each worker, and the end: consecutive items of about equal total cost."""
    total = costs.sum()
    workers = max(1, min(workers, total // enough))
    starts, worker, done = np.full(workers + 1, costs.size), 0, 0
    for item in range(costs.size):
        while worker < workers and done * workers >= total * worker:
            starts[worker] = item
            worker += 1
        done += costs[item]
    return starts
