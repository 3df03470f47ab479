"""Grades lesson 11. Read the tests if you like: they are the specification in numbers."""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from minipaged.course.checks import check_true, show
from minipaged.course.memory_drawing import try_launch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TILE = 16  # keys and rows in a tile of a toy launch
SPLIT = 32
NAN = float("nan")
OUTSIDE = (
    "a lane outside of [first, last), of HEAD_DIM or of the group is nobody's: mask the load of the table, "
    "of the keys and of the values, and leave such heads out. "
)
TOLERANCE = {torch.float16: 4e-3, torch.float32: 2e-5, torch.float64: 1e-9}


@dataclass
class Problem:
    """One decode step: queries, caches and tables, and what the keys and values of each row are."""

    queries: Tensor
    key_cache: Tensor
    value_cache: Tensor
    tables: Tensor
    lengths: Tensor
    scale: float

    def context(self, row: int, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the row, [length, num_kv_heads, head_dim] in float64, a token at a time."""
        block_size = self.key_cache.shape[1]
        places = [(int(self.tables[row, p // block_size]), p % block_size) for p in range(length)]
        gathered = [
            torch.stack([cache[block, slot].double().cpu() for block, slot in places])
            for cache in (self.key_cache, self.value_cache)
        ]
        return gathered[0], gathered[1]


def make(
    lengths: list[int],
    block_size: int,
    *,
    num_heads: int = 1,
    num_kv_heads: int = 1,
    head_dim: int = 16,
    dtype: torch.dtype = torch.float32,
    behind: float = NAN,
    rising: float = 0.0,
    scale: float = 0.5,
) -> Problem:
    """A step with shuffled blocks. `behind` is in slots that no token has; `rising` adds to the scores."""
    random = torch.Generator().manual_seed(sum(lengths) + 7 * block_size + num_heads)
    counts = [-(-length // block_size) for length in lengths]
    num_blocks = sum(counts) + 3
    ids = (torch.randperm(num_blocks - 1, generator=random) + 1).tolist()
    width = max(max(counts), 1) + 1
    tables = torch.full((len(lengths), width), 10**9, dtype=torch.int32)
    # K and V of a block lie side by side, as in the engine's pool, and other layers before and behind.
    pool = torch.full((num_blocks, 3, 2, block_size, num_kv_heads, head_dim), behind, dtype=torch.float64)
    for row, length in enumerate(lengths):
        for column in range(counts[row]):
            tables[row, column] = ids.pop()
        for position in range(length):
            block = int(tables[row, position // block_size])
            tokens = torch.randn(2, num_kv_heads, head_dim, generator=random, dtype=torch.float64)
            tokens[0, :, 0] = tokens[0, :, 0].abs() + rising * position
            pool[block, 1, :, position % block_size] = tokens
    queries = torch.randn(len(lengths), num_heads, head_dim + 3, generator=random, dtype=torch.float64)
    queries[..., 0] = queries[..., 0].abs() + 1
    pool = pool.to(dtype).to(DEVICE)
    return Problem(
        queries.to(dtype).to(DEVICE)[..., :head_dim],
        pool[:, 1, 0],
        pool[:, 1, 1],
        tables.to(DEVICE),
        torch.tensor(lengths, dtype=torch.int32, device=DEVICE),
        scale,
    )


def softmax(problem: Problem, row: int, head: int, first: int, last: int, kv_head: int | None = None) -> Any:
    """The weighted mean of the values [first, last), and the logarithm of the sum of exp(score)."""
    group = problem.queries.shape[1] // problem.key_cache.shape[2]
    keys, values = problem.context(row, last)
    kv_head = head // group if kv_head is None else kv_head
    scores = keys[first:, kv_head] @ problem.queries[row, head].double().cpu() * problem.scale
    return torch.softmax(scores, 0) @ values[first:, kv_head], float(torch.logsumexp(scores, 0))


def words(problem: Problem) -> str:
    """The problem in a line."""
    num_blocks, block_size, num_kv_heads, head_dim = problem.key_cache.shape
    heads = problem.queries.shape[1]
    return (
        f"contexts {problem.lengths.tolist()}, block size {block_size}, {num_blocks} blocks, {heads} query "
        f"head{'s' * (heads > 1)} on {num_kv_heads} KV head{'s' * (num_kv_heads > 1)} of {head_dim}, "
        f"{str(problem.queries.dtype).removeprefix('torch.')}"
    )


def launch_splits(exercise: ModuleType, problem: Problem, why: str) -> tuple[Tensor, Tensor, str]:
    """What `_decode_kernel` writes for each split, in memory full of NaN; and the drawing."""
    batch, num_heads, head_dim = problem.queries.shape
    _, block_size, num_kv_heads, _ = problem.key_cache.shape
    group = num_heads // num_kv_heads
    num_splits = -(-problem.tables.shape[1] * block_size // SPLIT)
    wide = torch.float64 if problem.queries.dtype == torch.float64 else torch.float32
    partial = torch.full((batch, num_heads, num_splits, head_dim), NAN, dtype=wide, device=DEVICE)
    statistics = torch.full((batch, num_heads, num_splits, 2), NAN, dtype=wide, device=DEVICE)

    def launch() -> None:
        exercise._decode_kernel[(batch, num_kv_heads * -(-group // TILE), num_splits)](
            problem.queries, problem.key_cache, problem.value_cache, problem.tables, problem.lengths,
            partial, statistics, num_heads, num_splits, *problem.queries.stride()[:2],
            *problem.key_cache.stride()[:3], *problem.value_cache.stride()[:3], problem.tables.stride(0),
            SCALE=problem.scale, WINDOW=None, SOFTCAP=None, BLOCK_SIZE=block_size, SPLIT_LENGTH=SPLIT,
            GROUP=group, HEAD_DIM=head_dim, ROW_TILE=TILE, KEY_TILE=TILE,
            DIM_TILE=max(16, 1 << (head_dim - 1).bit_length()),
        )  # fmt: skip

    drawing = try_launch(
        words(problem),
        why,
        launch,
        ["block_tables", "key_cache", "value_cache"],
        queries=problem.queries,
        key_cache=problem.key_cache,
        value_cache=problem.value_cache,
        block_tables=problem.tables,
        context_lengths=problem.lengths,
        partial=partial,
        statistics=statistics,
    )
    return partial.double().cpu(), statistics.double().cpu(), drawing


def check_splits(exercise: ModuleType, problem: Problem, why: str, outside: str = OUTSIDE) -> None:
    """Compare output / total and best + log(total) of each split with a softmax in float64."""
    partial, statistics, drawing = launch_splits(exercise, problem, outside + why)
    tolerance = TOLERANCE[problem.queries.dtype]
    for row, length in enumerate(problem.lengths.tolist()):
        for head in range(problem.queries.shape[1]):
            for split, first in enumerate(range(0, length, SPLIT)):
                last = min(first + SPLIT, length)
                mean, log_sum = softmax(problem, row, head, first, last)
                best, total = statistics[row, head, split].tolist()
                got = partial[row, head, split] / total
                at = f"keys {first} to {last - 1} of row {row}, head {head}; {words(problem)}"
                check_true(
                    f"output / total of {at}",
                    torch.allclose(got, mean, rtol=tolerance, atol=tolerance),
                    show(mean.tolist()),
                    f"{show(got.tolist())}\n{drawing}",
                    lambda _, g=got, h=head, r=row, a=first, b=last: _reason(g, problem, r, h, a, b, why),
                )
                got_log = best + math.log(total) if total > 0 else NAN
                check_true(
                    f"best + log(total) of {at}",
                    abs(got_log - log_sum) <= tolerance * (1 + abs(log_sum)),
                    show(log_sum),
                    f"{show(got_log)}, best {show(best)}, total {show(total)}\n{drawing}",
                    lambda _, t=total, g=got_log, h=head, r=row, a=first, b=last: _log_reason(
                        g, t, problem, r, h, a, b, why
                    ),
                )


def _log_reason(
    got: float, total: float, problem: Problem, row: int, head: int, first: int, last: int, why: str
) -> str:
    """The misconception that gives this very best + log(total)."""
    unscaled = Problem(**{**vars(problem), "scale": 1.0})
    if abs(got - softmax(unscaled, row, head, first, last)[1]) < 1e-4:
        return "the scores were not multiplied by SCALE"
    if last - first > 1 and abs(total - 1) < 1e-5:
        return (
            "total is 1: the tile was normalised by itself (a softmax per tile). total is the sum of "
            "exp(score - best), and what divides by it is the merge, once"
        )
    return f"the three values are relative to one best: total is the sum of exp(score - best). {why}"


def _reason(got: Tensor, problem: Problem, row: int, head: int, first: int, last: int, why: str) -> str:
    """The misconception that gives this very output."""
    block_size, num_kv_heads = problem.key_cache.shape[1:3]
    tolerance = TOLERANCE[problem.queries.dtype]

    def is_(mean: Tensor) -> bool:
        return torch.allclose(got, mean, rtol=tolerance, atol=tolerance)

    if bool(got.isnan().any()):
        return (
            "NaN. A slot outside of the context may hold NaN, and 0 x NaN is NaN: mask the load of keys and "
            "of values, a weight of 0 is not enough. Where best is -inf, -inf - -inf is NaN as well. " + why
        )
    full = -(-last // block_size) * block_size
    if full != last and is_(softmax(problem, row, head, first, full)[0]):
        return "the last block was read as if it were full: only its first slots belong to the context"
    for kv_head in range(num_kv_heads):
        if num_kv_heads > 1 and is_(softmax(problem, row, head, first, last, kv_head)[0]):
            return (
                f"head {head} has read KV head {kv_head}: the heads of a group lie in a row, query head h "
                "reads KV head h // GROUP (the group index)"
            )
    unscaled = Problem(**{**vars(problem), "scale": 1.0})
    if is_(softmax(unscaled, row, head, first, last)[0]):
        return "the scores were not multiplied by SCALE"
    return why


def test_one_key(exercise: ModuleType) -> None:
    """With a single key, the output is its value, whatever the score."""
    why = "one key: its weight is exp(score - best) = exp(0) = 1"
    check_splits(exercise, make([1], 1), why)
    check_splits(exercise, make([1], 4, behind=3.0), why)
    check_splits(exercise, make([1], 4), why)


def test_one_block(exercise: ModuleType) -> None:
    """The values of a block are weighted by the softmax of their scores."""
    why = "weights are exp(score - best), score is SCALE * (query . key), best the largest score of the row"
    check_splits(exercise, make([4], 4), why)
    check_splits(exercise, make([16], 16), why)


def test_blocks_lie_anywhere(exercise: ModuleType) -> None:
    """Every key looks up its own block in the table."""
    why = "position p is in slot p % BLOCK_SIZE of block table[p // BLOCK_SIZE]; add their two strides"
    check_splits(exercise, make([8], 4), why)
    check_splits(exercise, make([16, 8], 4), why)
    check_splits(exercise, make([8], 4, num_heads=2, num_kv_heads=2), why)


def test_the_last_block_is_not_full(exercise: ModuleType) -> None:
    """Slots past the context are not part of it, whatever they hold."""
    why = "the context ends within a block: slots past `last` are no keys, they count as a score of -inf"
    check_splits(exercise, make([6], 4, behind=1.0), why)
    check_splits(exercise, make([3], 16, behind=-2.0), why)


def test_what_was_never_written_is_not_read(exercise: ModuleType) -> None:
    """Slots past the context may hold NaN, and the table any number."""
    why = (
        "a key past `last` must not be looked up nor loaded: mask the load of the table, of the keys and of "
        "the values, since 0 x NaN is NaN"
    )
    check_splits(exercise, make([6], 4), why)
    check_splits(exercise, make([3, 9], 16), why)


def test_several_tiles(exercise: ModuleType) -> None:
    """When a tile brings a larger score, what was summed before is rescaled."""
    why = (
        "two tiles of keys: where best rises to new_best, total and output so far must be rescaled, "
        "multiplied by exp(best - new_best), before the new tile is added"
    )
    check_splits(exercise, make([20], 4, rising=0.1), why)
    check_splits(exercise, make([32], 16, rising=-0.1), why)
    check_splits(exercise, make([30], 4, rising=0.3), why)
    large = "scores of several hundred: exp(score) overflows, only exp(score - best) is safe"
    check_splits(exercise, make([20], 4, rising=30.0), large)
    check_splits(exercise, make([20], 4, rising=-30.0), large)


def test_block_sizes(exercise: ModuleType) -> None:
    """A block may be of any size: smaller than a tile of keys, larger, and no divisor of it."""
    why = (
        "a tile of 16 keys and a block of this size don't divide each other: every key looks up its own block"
    )
    for block_size in (1, 3, 5, 24, 64):
        check_splits(exercise, make([29], block_size), why)


def test_groups_of_heads(exercise: ModuleType) -> None:
    """Query head h reads KV head h // GROUP."""
    why = "GROUP query heads in a row share a KV head: heads kv_head * GROUP to kv_head * GROUP + GROUP - 1"
    check_splits(exercise, make([5], 4, num_heads=2, num_kv_heads=2), why)
    check_splits(exercise, make([5], 4, num_heads=4, num_kv_heads=2), why)
    check_splits(exercise, make([5], 4, num_heads=6, num_kv_heads=2), why)
    many = "a group of more heads than ROW_TILE has several programs, the last of them with lanes to spare"
    check_splits(exercise, make([5], 4, num_heads=17), many)
    check_splits(exercise, make([5], 4, num_heads=36, num_kv_heads=2), many)


def test_head_dims(exercise: ModuleType) -> None:
    """Lanes from HEAD_DIM on belong to the next head."""
    why = "lanes from HEAD_DIM on are somebody else's elements: mask the loads with dims < HEAD_DIM as well"
    check_splits(exercise, make([5], 4, head_dim=5), why)
    check_splits(exercise, make([5], 4, head_dim=20, num_heads=2, num_kv_heads=2), why)


def test_splits(exercise: ModuleType) -> None:
    """A program reads the keys of its own split."""
    why = "a program begins at `first`: its positions are first + ..., up to `last`"
    check_splits(exercise, make([33], 16), why)
    check_splits(exercise, make([70, 5, 64], 7, rising=0.05), why)


def test_dtypes(exercise: ModuleType) -> None:
    """Sums run in float32, in float64 for float64."""
    why = "sums run in float32 for float16, in float64 for float64; tl.dot wants two tiles of one dtype"
    check_splits(exercise, make([20], 4, dtype=torch.float16), why)
    check_splits(exercise, make([20], 4, dtype=torch.float64), why)


def far(first: int) -> Tensor:
    """A cache [5, 2, 1, 16] of float16, its blocks 2^30 elements apart: address space, hardly any memory."""
    size = 4 * 2**30 + 128
    if DEVICE == "cuda":
        memory = torch.zeros(size, dtype=torch.float16, device=DEVICE)
    else:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        memory = torch.frombuffer(mmap.mmap(-1, 2 * size, flags=flags), dtype=torch.float16)
    return memory.as_strided((5, 2, 1, 16), (2**30, 16, 16, 1), first)


def test_a_large_pool(exercise: ModuleType) -> None:
    """In a pool of more than 2^32 elements, block * stride needs 64 bits."""
    problem = make([2], 2, dtype=torch.float16)
    for name in ("key_cache", "value_cache"):
        cache, last_block = far(0), getattr(problem, name)[int(problem.tables[0, 0])]
        cache[4] = last_block
        setattr(problem, name, cache)
    problem.tables[0, 0] = 4
    why = "block 4 lies 2^32 elements on: blocks * block_stride has overflowed, make blocks 64-bit first"
    check_splits(exercise, problem, why, outside="")


def check_merge(
    exercise: ModuleType,
    splits: list[list[tuple[float, float, float]]],
    lengths: list[int],
    why: str,
    *,
    num_heads: int = 1,
    head_dim: int = 4,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Merge splits given as (best, total, mean value) a row; head h has h added to its values."""
    batch, num_splits = len(splits), max(map(len, splits)) + 1
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    shape = (batch, num_heads, num_splits, head_dim)
    partial = torch.full(shape, NAN, dtype=wide, device=DEVICE)
    statistics = torch.full((*shape[:3], 2), NAN, dtype=wide, device=DEVICE)
    expected = torch.zeros(batch, num_heads, head_dim, dtype=torch.float64)
    for row, row_splits in enumerate(splits):
        top = max((best for best, _, _ in row_splits), default=0.0)
        weights = [total * math.exp(best - top) for best, total, _ in row_splits]
        for head in range(num_heads):
            for split, (best, total, mean) in enumerate(row_splits):
                statistics[row, head, split] = torch.tensor([best, total])
                partial[row, head, split] = total * (
                    mean + head + torch.arange(head_dim, dtype=torch.float64)
                )
                expected[row, head] += (
                    weights[split]
                    / sum(weights)
                    * (mean + head + torch.arange(head_dim, dtype=torch.float64))
                )
    length_ids = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
    memory = torch.full((batch, num_heads, head_dim + 2), -7.0, dtype=dtype, device=DEVICE)
    output = memory[..., :head_dim]
    tried = (
        f"splits (best, total, output / total) {splits}, contexts {lengths}, SPLIT_LENGTH {SPLIT}, "
        f"{num_heads} head{'s' * (num_heads > 1)} of {head_dim}; NaN in splits that were not written"
    )
    drawing = try_launch(
        tried,
        why,
        lambda: exercise._merge_kernel[(batch, num_heads)](
            partial, statistics, length_ids, output, num_heads, num_splits, *output.stride()[:2],
            WINDOW=None, SPLIT_LENGTH=SPLIT, HEAD_DIM=head_dim, SPLIT_TILE=2, DIM_TILE=16,
        ),
        ["statistics", "output"],
        partial=partial,
        statistics=statistics,
        context_lengths=length_ids,
        output=output,
    )  # fmt: skip
    got = output.double().cpu()
    tolerance = TOLERANCE[dtype]
    wrong = (
        ((got - expected).abs() <= tolerance * (1 + expected.abs())).logical_not().any(2).nonzero().tolist()
    )
    row, head = wrong[0] if wrong else (0, 0)
    nan = (
        "NaN: splits from tl.cdiv(length, SPLIT_LENGTH) on were never written, and the total of a row "
        "without context is 0. "
    )
    check_true(
        f"the output of row {row}, head {head}: {tried}",
        not wrong,
        show(expected[row, head].tolist()),
        f"{show(got[row, head].tolist())}\n{drawing}",
        nan + why if bool(got[row, head].isnan().any()) else why,
    )
    check_true(
        f"memory between the heads of the output: {tried}",
        bool((memory[..., head_dim:] == -7).all()),
        "unchanged",
        "written to",
        "only HEAD_DIM of the DIM_TILE lanes belong to the head: mask the store",
    )


def test_merge_one_split(exercise: ModuleType) -> None:
    """The output is the weighted sum over the sum of weights."""
    why = "divide the sum of weights times values by the sum of weights, once, at the end"
    check_merge(exercise, [[(0.5, 1.0, 3.0)]], [5], why)
    check_merge(exercise, [[(-2.0, 2.5, 1.0)]], [32], why)


def test_merge_several_splits(exercise: ModuleType) -> None:
    """Each split is relative to its own best: rescale it to the best of all."""
    why = "a split is relative to its own best: multiply total and output by exp(its best - best of all)"
    check_merge(exercise, [[(1.0, 2.0, 3.0), (1.0, 1.0, 6.0)]], [40], why)
    check_merge(exercise, [[(1.0, 2.0, 3.0), (2.0, 1.0, 6.0)]], [64], why)
    check_merge(exercise, [[(3.0, 2.0, 3.0), (0.5, 4.0, 6.0)]], [33], why)
    far = "bests of several hundred: exp(best) overflows, only exp(best - best of all) is safe"
    check_merge(exercise, [[(900.0, 2.0, 3.0), (901.0, 4.0, 6.0)]], [50], far)
    check_merge(exercise, [[(-901.0, 2.0, 3.0), (-900.0, 4.0, 6.0)]], [50], far)


def test_merge_more_splits_than_a_tile(exercise: ModuleType) -> None:
    """SPLIT_TILE splits are taken at a time, the last time perhaps fewer."""
    why = "more splits than SPLIT_TILE: go on, and rescale what was summed so far whenever best rises"
    rising = [(float(i), 1.0 + i, 2.0 * i) for i in range(5)]
    check_merge(exercise, [rising[:3]], [70], why)
    check_merge(exercise, [rising], [150], why)
    check_merge(exercise, [rising[::-1][:4]], [128], why)


def test_merge_an_empty_row(exercise: ModuleType) -> None:
    """A row without context has no split that was written, and gets zeros."""
    why = "no keys, no split: the total is 0, and the output 0 (0 / 0 is NaN)"
    check_merge(exercise, [[]], [0], why)
    check_merge(exercise, [[(1.0, 2.0, 3.0)], []], [5, 0], why)


def test_merge_rows_and_heads(exercise: ModuleType) -> None:
    """Program (i, j) merges row i and head j."""
    why = (
        "row i, head j, split s is number (i * num_heads + j) * num_splits + s of the statistics and partials"
    )
    rows = [[(1.0, 2.0, 3.0)], [(1.0, 2.0, 5.0), (2.0, 1.0, 6.0)]]
    check_merge(exercise, rows, [7, 64], why, num_heads=3)
    check_merge(exercise, rows, [7, 64], why, num_heads=2, head_dim=5)
    check_merge(exercise, rows, [7, 64], why, num_heads=2, dtype=torch.float64)
    check_merge(exercise, rows, [7, 64], "the output has a dtype of its own", dtype=torch.float16)


def check_decode(exercise: ModuleType, problem: Problem) -> None:
    """Compare `decode_attention` with a softmax in float64."""
    used = -(-problem.lengths[:, None] // problem.key_cache.shape[1])
    columns = torch.arange(problem.tables.shape[1], device=DEVICE)
    problem.tables[columns[None, :] >= used] = 0
    tried = f"decode_attention: {words(problem)}"
    outputs: list[Tensor] = []
    drawing = try_launch(
        tried,
        "the kernels must work with the tiles and splits that the launch chooses",
        lambda: outputs.append(
            exercise.decode_attention(
                problem.queries, problem.key_cache, problem.value_cache, problem.tables, problem.lengths,
                scale=problem.scale,
            )
        ),
        ["block_tables"],
        block_tables=problem.tables,
    )  # fmt: skip
    tolerance = TOLERANCE[problem.queries.dtype]
    for row, length in enumerate(problem.lengths.tolist()):
        for head in range(problem.queries.shape[1]):
            got = outputs[0][row, head].double().cpu()
            mean = softmax(problem, row, head, 0, length)[0] if length else torch.zeros_like(got)
            check_true(
                f"row {row}, head {head} of {tried}",
                torch.allclose(got, mean, rtol=tolerance, atol=tolerance),
                show(mean.tolist()),
                f"{show(got.tolist())}\n{drawing}",
                "splits and merge are right by themselves: look at what depends on SPLIT_LENGTH and tiles",
            )


def test_the_whole_step(exercise: ModuleType) -> None:
    """`decode_attention` is a softmax over each row's context."""
    check_decode(exercise, make([3], 4))
    check_decode(exercise, make([0, 1, 17], 7, num_heads=6, num_kv_heads=2))
    check_decode(exercise, make([256, 257, 300], 16, num_heads=2, head_dim=8, rising=0.02))
