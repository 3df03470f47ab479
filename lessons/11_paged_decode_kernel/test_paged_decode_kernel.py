"""Grades lesson 11. Read the tests if you like: they are the specification in numbers."""

from __future__ import annotations

import ast
import functools
import inspect
import math
import mmap
import re
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from minipaged.course.checks import check_true, show
from minipaged.course.memory_drawing import try_launch, undefined_lanes
from minipaged.course.memory_map import Recording, can_record
from minipaged.kernels._triton_arguments import Scoring, Sizes, TokenStrides, strides_for

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TILE = 16  # keys and rows in a tile of a toy launch
SPLIT = 32
NAN = float("nan")
UNWRITTEN = -12345.0
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
    lowest: float = 0.0,
    scale: float = 0.5,
) -> Problem:
    """A step with shuffled blocks. `behind` is in slots that no token has; scores begin at `lowest`."""
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
            tokens[0, :, 0] = tokens[0, :, 0].abs() + lowest + rising * position
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


def in_full(expected: Any, got: Any) -> tuple[str, str]:
    """Both as the report prints them: with all their digits where fewer make them alike."""
    short = show(expected), show(got)
    return short if short[0] != short[1] else (repr(expected), repr(got))


def launch_splits(
    exercise: ModuleType, problem: Problem, why: str, split: int
) -> tuple[Tensor, Tensor, str, Recording]:
    """What `_decode_kernel` writes for each split, and the drawing and the recording of it."""
    batch, num_heads, head_dim = problem.queries.shape
    _, block_size, num_kv_heads, _ = problem.key_cache.shape
    group = num_heads // num_kv_heads
    num_splits = -(-problem.tables.shape[1] * block_size // split)
    wide = torch.float64 if problem.queries.dtype == torch.float64 else torch.float32
    partial = torch.full((batch, num_heads, num_splits, head_dim), UNWRITTEN, dtype=wide, device=DEVICE)
    statistics = torch.full((batch, num_heads, num_splits, 2), UNWRITTEN, dtype=wide, device=DEVICE)

    strides = strides_for(
        problem.queries, problem.key_cache, problem.value_cache, problem.tables, problem.queries
    )
    sizes = Sizes(
        BLOCK_SIZE=block_size, SPLIT_LENGTH=split, NUM_HEADS=num_heads, GROUP=group, HEAD_DIM=head_dim,
        ROW_TILE=TILE, KEY_TILE=TILE, DIM_TILE=max(16, 1 << (head_dim - 1).bit_length()),
    )  # fmt: skip

    def launch() -> None:
        exercise._decode_kernel[(batch, num_kv_heads * -(-group // TILE), num_splits)](
            problem.queries, problem.key_cache, problem.value_cache, problem.tables, problem.lengths,
            partial, statistics, strides, SCORING=Scoring(problem.scale, None, None), SIZES=sizes,
        )  # fmt: skip

    drawing, recorded = try_launch(
        words(problem),
        lambda outside: _why_outside(outside, why),
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
    return partial.double().cpu(), statistics.double().cpu(), drawing, recorded


def _why_outside(outside: str, why: str) -> str:
    """Why a program may have left the array that `outside` names."""
    if _is_far(outside):
        return (
            "this address is far from every array, so it was made from a table entry that means nothing: a "
            "position outside of [first, last) was looked up, perhaps `last` itself. Inside are positions "
            f">= first and < last: mask the loads of table, keys and values with exactly these. {why}"
        )
    if any(f"{name}[" in outside for name in ("queries", "partial", "statistics")):
        return (
            "a head that is not in the group was touched, or a dim past HEAD_DIM: the heads of KV head k are "
            "k * GROUP to k * GROUP + GROUP - 1, and the third value of _group_heads says which of the "
            "ROW_TILE are among them, number below GROUP; a group of more heads than ROW_TILE has several "
            "programs"
        )
    if "block_tables" in outside:
        return f"a row's table ends with its context: mask the load of the table, inside [first, last). {why}"
    if outside:
        return (
            "a lane outside of [first, last) or past HEAD_DIM is not masked in the load, or a slot is sought "
            "in the wrong place: block id (64-bit) * block_stride + slot * slot_stride, the strides of this "
            f"cache. {why}"
        )
    return why


def _is_far(outside: str) -> bool:
    """Whether an address is so far from the array named that only a wrong block id leads there."""
    index = re.search(r"\w\[([-\d, ]+)\]", outside)
    return index is not None and any(abs(int(number)) > 2**24 for number in index[1].split(","))


def stray_read(problem: Problem, recorded: Recording, split: int) -> str:
    """The first read of a table entry or a slot that is none of the program's keys, in words; or ""."""
    block_size = problem.key_cache.shape[1]
    lengths, tables = problem.lengths.tolist(), problem.tables.tolist()
    allowed: dict[tuple[int, int], set[tuple[str, tuple[int, ...]]]] = {}
    for access in recorded.accesses:
        if access.kind != "read" or access.array not in ("block_tables", "key_cache", "value_cache"):
            continue
        row, _, part = map(int, access.program.removeprefix("program (").removesuffix(")").split(", "))
        if (row, part) not in allowed:
            mine = range(part * split, min(part * split + split, lengths[row]))
            entries = {("block_tables", (row, p // block_size)) for p in mine}
            slots = [(tables[row][p // block_size], p % block_size) for p in mine]
            caches = {(name, slot) for name in ("key_cache", "value_cache") for slot in slots}
            allowed[row, part] = entries | caches
        if (access.array, access.index[:2]) not in allowed[row, part]:
            place = ", ".join(map(str, access.index[:2]))
            return f"{access.program} read {access.array}[{place}], which is of none of its keys"
    return ""


def check_splits(
    exercise: ModuleType, problem: Problem, why: str, split: int = SPLIT, tolerance: float | None = None
) -> None:
    """Compare output / total and best + log(total) of each split with a softmax in float64."""
    partial, statistics, drawing, recorded = launch_splits(exercise, problem, why, split)
    stray = stray_read(problem, recorded, split)
    has_read = bool(recorded.read("key_cache")) or not recorded.accesses
    tolerance = tolerance or TOLERANCE[problem.queries.dtype]
    for row, length in enumerate(problem.lengths.tolist()):
        for head in range(problem.queries.shape[1]):
            for number, first in enumerate(range(0, length, split)):
                last = min(first + split, length)
                mean, log_sum = softmax(problem, row, head, first, last)
                best, total = statistics[row, head, number].tolist()
                got = partial[row, head, number] / total
                at = f"keys {first} to {last - 1} of row {row}, head {head}; {words(problem)}"
                check_true(
                    f"what was written for {at}",
                    total != UNWRITTEN,
                    "output, best and total",
                    f"nothing\n{drawing}",
                    f"no program has written head {head}: the programs of KV head 0 come first, each KV head "
                    f"has tl.cdiv(GROUP, ROW_TILE), and their heads are kv_head * GROUP + member. {why}",
                )
                expected, came = in_full(mean.tolist(), got.tolist())
                reason = _Reason(problem, row, head, first, last, why, best, total, stray, has_read)
                check_true(
                    f"output / total of {at}",
                    torch.allclose(got, mean, rtol=tolerance, atol=tolerance),
                    expected,
                    f"{came}, best {show(best)}, total {show(total)}\n{drawing}",
                    lambda _, g=got, p=partial[row, head, number], r=reason: r.of_output(g, p),
                )
                got_log = best + math.log(total) if total > 0 else NAN
                expected, came = in_full(log_sum, got_log)
                check_true(
                    f"best + log(total) of {at}",
                    abs(got_log - log_sum) <= tolerance * (1 + abs(log_sum)),
                    expected,
                    f"{came}, best {show(best)}, total {show(total)}\n{drawing}",
                    lambda _, g=got_log, r=reason: r.of_log(g),
                )
    check_true(
        f"what is read: {words(problem)}",
        not stray,
        "the keys and values of each program's split, and their entries of the table",
        f"{stray}\n{drawing}",
        f"what is not among the keys [first, last) must not be loaded at all, even if its score is masked "
        f"afterwards: it may be NaN, or anywhere. Mask the loads of table, keys and values. {why}",
    )


@dataclass
class _Reason:
    """Finds the misconception that gives a wrong output, or a wrong best or total, of one split."""

    problem: Problem
    row: int
    head: int
    first: int
    last: int
    why: str
    best: float
    total: float
    stray: str
    has_read: bool

    def of_output(self, got: Tensor, partial: Tensor) -> str:
        """Why output / total is wrong."""
        problem, last, head, why = self.problem, self.last, self.head, self.why
        block_size, num_kv_heads = problem.key_cache.shape[1:3]
        tolerance = TOLERANCE[problem.queries.dtype]

        def is_(mean: Tensor) -> bool:
            return torch.allclose(got, mean, rtol=tolerance, atol=tolerance)

        if bool(got.isnan().any()):
            return self.of_nan()
        if is_(softmax(problem, *self._place())[0]):
            return f"right but for the last digits. {why}"
        if torch.allclose(partial / self.best, softmax(problem, *self._place())[0], rtol=tolerance):
            return "best and total have changed places: _attend returns output, best, total, in this order"
        mean, log_sum = softmax(problem, *self._place())
        is_right_total = self.total > 0 and abs(self.best + math.log(self.total) - log_sum) < 1e-4
        if is_right_total and torch.allclose(partial, mean, rtol=tolerance, atol=tolerance):
            return "`output` was divided by `total` already: it is the sum, and the merge divides, once"
        full = -(-last // block_size) * block_size
        if full != last and is_(softmax(problem, self.row, head, self.first, full)[0]):
            return "the last block was read as if it were full: only its first slots belong to the context"
        for kv_head in range(num_kv_heads):
            if num_kv_heads > 1 and is_(softmax(problem, *self._place(), kv_head)[0]):
                return (
                    f"head {head} has read KV head {kv_head}: the heads of a group lie in a row, query head "
                    "h reads KV head h // GROUP (the group index)"
                )
        for scaled, said in self._other_scales():
            if is_(softmax(scaled, *self._place())[0]):
                return said
        if self.best >= 0 and is_(self._with_lanes_of_score_zero()):
            return "lanes outside of [first, last) were counted, with a score of 0: their score must be -inf"
        return f"{self.stray}. {why}" if self.stray else why

    def of_nan(self) -> str:
        """Why an output is NaN."""
        if self.stray:
            return (
                f"NaN, and {self.stray}: such a slot may hold NaN, and 0 x NaN is NaN, so that a weight of 0 "
                "is not enough. Mask the loads of table, keys and values, unless the key itself was looked "
                f"up in the wrong place. {self.why}"
            )
        if not self.has_read:
            return f"no key was read at all: range(first, last, KEY_TILE) has its last tile too. {self.why}"
        if self.total == 0:
            return (
                "total is 0: each key that was read had the weight 0. A query sees the keys up to its own "
                f"position, position <= query position; the best score starts at -inf. {self.why}"
            )
        if math.isinf(self.total) or math.isinf(self.best) or math.isnan(self.best):
            return (
                f"best is {show(self.best)} and total {show(self.total)}: inf - inf and 0 x inf are NaN, and "
                "exp(score) overflows: take exp(score - best), best the largest score so far, "
                "tl.maximum(best, the tile's). " + self.why
            )
        return (
            "NaN. A slot outside of the context may hold NaN, and 0 x NaN is NaN: mask the load of keys and "
            f"of values, a weight of 0 is not enough. {self.why}"
        )

    def of_log(self, got: float) -> str:
        """Why best + log(total) is wrong."""
        for scaled, said in self._other_scales():
            is_best = self.last - self.first == 1 and self._is_near(self.best, scaled)
            if is_best or self._is_near(got, scaled):
                return said
        if math.isclose(got, softmax(self.problem, *self._place())[1], rel_tol=4e-3):
            return f"right but for the last digits. {self.why}"
        if self.last - self.first > 1 and abs(self.total - 1) < 1e-5:
            return (
                "total is 1: the tile was normalised by itself (a softmax per tile). total is the sum of "
                "exp(score - best), and what divides by it is the merge, once"
            )
        return f"the three values are relative to one best: total is the sum of exp(score - best). {self.why}"

    def _is_near(self, got: float, scaled: Problem) -> bool:
        """Whether a number is the best + log(total) of another scale. With one key that is its score."""
        return abs(got - softmax(scaled, *self._place())[1]) < 1e-4

    def _with_lanes_of_score_zero(self) -> Tensor:
        """The output where the lanes that fill the last tile count like keys, and have values of 0."""
        mean, log_sum = softmax(self.problem, *self._place())
        num_lanes = (self.first - self.last) % TILE
        return mean / (1 + num_lanes * torch.tensor(-log_sum, dtype=torch.float64).exp())

    def _place(self) -> tuple[int, int, int, int]:
        return self.row, self.head, self.first, self.last

    def _other_scales(self) -> list[tuple[Problem, str]]:
        root = self.problem.key_cache.shape[-1] ** -0.5
        return [
            (Problem(**{**vars(self.problem), "scale": 1.0}), "the scores were not multiplied by SCALE"),
            (
                Problem(**{**vars(self.problem), "scale": root}),
                "the scores were multiplied by 1 / sqrt(HEAD_DIM): the factor is SCALE, whatever that is",
            ),
        ]


def test_one_key(exercise: ModuleType) -> None:
    """With a single key, the output is its value, whatever the score."""
    why = "Here there is one key, so its weight is exp(score - best) = exp(0) = 1"
    check_splits(exercise, make([1], 1), why)
    check_splits(exercise, make([1], 4, behind=3.0), why)
    check_splits(exercise, make([1], 4), why)


def test_one_block(exercise: ModuleType) -> None:
    """The values of a block are weighted by the softmax of their scores."""
    why = "weights are exp(score - best), score is SCALE * (query . key), best the largest score of the row"
    check_splits(exercise, make([4], 4), why)
    check_splits(exercise, make([16], 16), why)


def test_each_head_has_a_best_of_its_own(exercise: ModuleType) -> None:
    """Scores of one head say nothing about those of another."""
    problem = make([3], 4, num_heads=2)
    problem.queries[0, 0] *= 1000
    problem.queries[0, 1] = 0
    why = (
        "the scores of head 0 are very large and those of head 1 are 0: each row of the tile has a best of "
        "its own, tl.max(scores, 1), or exp(score - best) is 0 for head 1"
    )
    check_splits(exercise, problem, why)


def test_blocks_lie_anywhere(exercise: ModuleType) -> None:
    """Every key looks up its own block in the table."""
    why = "position p is in slot p % BLOCK_SIZE of block table[p // BLOCK_SIZE]; add their two strides"
    check_splits(exercise, make([8], 4), why)
    check_splits(exercise, make([16, 8], 4), why)
    check_splits(exercise, make([8], 4, num_heads=2, num_kv_heads=2), why)
    problem = make([3], 4)
    block = int(problem.tables[0, 0])
    for cache in (problem.key_cache, problem.value_cache):
        cache[0] = cache[block]
        cache[block] = NAN
    problem.tables[0, 0] = 0
    check_splits(exercise, problem, "block 0 is a block like any other: a lane is masked by its position")


def test_k_and_v_have_strides_of_their_own(exercise: ModuleType) -> None:
    """K and V may lie in memory each in its own way."""
    for name in ("value_cache", "key_cache"):
        problem = make([6], 4)
        cache = getattr(problem, name)
        num_blocks, block_size, num_kv_heads, head_dim = cache.shape
        larger = torch.full(
            (num_blocks, block_size + 1, num_kv_heads, 2 * head_dim), NAN, dtype=cache.dtype, device=DEVICE
        )
        larger[:, 1:, :, head_dim:] = cache
        setattr(problem, name, larger[:, 1:, :, head_dim:])
        why = (
            f"K and V lie in two kinds of memory here: strides.{name}.block and strides.{name}.slot are "
            f"those of {name} alone"
        )
        check_splits(exercise, problem, why)


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


def test_scores_far_below_zero(exercise: ModuleType) -> None:
    """The best score may be as low as it likes."""
    why = "the score is far below 0, and still the best: best starts at -inf, since exp(-500 - 0) is 0"
    check_splits(exercise, make([1], 4, lowest=-1000.0), why)
    why = (
        "the score is below -10000, and a lane outside of [first, last) must be lower still: float('-inf'), "
        "no large number"
    )
    check_splits(exercise, make([1], 4, lowest=-40000.0), why)


def test_block_sizes(exercise: ModuleType) -> None:
    """A block may be of any size: smaller than a tile of keys, larger, and no divisor of it."""
    why = (
        "a tile of 16 keys and a block of this size need not divide each other: every key looks up its own "
        "block, position // BLOCK_SIZE, and its slot there, position % BLOCK_SIZE"
    )
    for block_size in (1, 3, 5, 24, 64):
        check_splits(exercise, make([29], block_size), why)


def test_groups_of_heads(exercise: ModuleType) -> None:
    """Query head h reads KV head h // GROUP."""
    why = "GROUP query heads in a row share a KV head: heads kv_head * GROUP to kv_head * GROUP + GROUP - 1"
    check_splits(exercise, make([5], 4, num_heads=2, num_kv_heads=2), why)
    check_splits(exercise, make([5], 4, num_heads=4, num_kv_heads=2), why)
    check_splits(exercise, make([5], 4, num_heads=6, num_kv_heads=2), why)
    exact = "16 heads fill a tile of 16: tl.cdiv(GROUP, ROW_TILE) is 1, and GROUP // ROW_TILE + 1 is 2"
    check_splits(exercise, make([5], 4, num_heads=32, num_kv_heads=2), exact)
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
    why = (
        "splits of 24 keys, tiles of 16: a split may begin within a tile, and the keys before `first` are "
        "another program's. Begin at `first`, or mask positions >= first"
    )
    check_splits(exercise, make([33], 16), why, split=24)


def test_dtypes(exercise: ModuleType) -> None:
    """Sums run in float32, in float64 for float64."""
    why = "sums run in float32 for float16, in float64 for float64; tl.dot wants two tiles of one dtype"
    check_splits(exercise, make([20], 4, dtype=torch.float16), why)
    check_splits(exercise, make([20], 4, dtype=torch.float64), why)


def test_a_program_takes_its_own_tiles(exercise: ModuleType) -> None:
    """The splits of a context share out its tiles: none goes through those of another."""
    if not can_record():
        return
    problem, dots = make([100], 16), 0
    dot = exercise.tl.dot

    @functools.wraps(dot)
    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal dots
        dots += 1
        return dot(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exercise.tl, "dot", counted)
        check_splits(exercise, problem, "a program takes the tiles of its own split")
    check_true(
        f"tl.dot in all programs: {words(problem)}, SPLIT_LENGTH {SPLIT}, KEY_TILE {TILE}",
        dots <= 3 * 7,
        "at most 3 for each of the 7 tiles of keys",
        str(dots),
        "each split goes from its `first` to its `last`, KEY_TILE keys at a time: a program that also passes "
        "through the tiles of other splits takes as long as one that attends to the whole context",
    )


def test_products_are_not_rounded(exercise: ModuleType) -> None:
    """tl.dot is told to keep the digits of float32."""
    check_splits(exercise, make([1], 1), "the output of one key is its value")
    for line, precision in dot_precisions(exercise):
        check_true(
            f"the precision of {line}",
            precision not in ("tf32", "None"),
            'input_precision="ieee"',
            precision,
            "a GPU's tl.dot rounds float32 to TF32, 10 bits of fraction, unless it is told not to. "
            "Interpreted it makes no difference, so this is read from your source",
        )


def dot_precisions(exercise: ModuleType) -> list[tuple[str, str]]:
    """Each tl.dot of the file, and its precision: "tf32" where none is named."""
    found = []
    for node in ast.walk(ast.parse(inspect.getsource(exercise))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("tl.dot", "dot"):
            named = {keyword.arg: ast.unparse(keyword.value).strip("'") for keyword in node.keywords}
            exact = "ieee" if named.get("allow_tf32") == "False" else "tf32"
            found.append((ast.unparse(node), named.get("input_precision", exact)))
    return found


def far(*shape: int, dtype: torch.dtype = torch.float16) -> Tensor:
    """A tensor whose first axis has 5 entries 2^30 elements apart: address space, hardly any memory."""
    inner = torch.empty(shape).stride()
    return untouched(4 * 2**30 + 1024, dtype).as_strided((5, *shape), (2**30, *inner))


def untouched(size: int, dtype: torch.dtype) -> Tensor:
    """Zeros of which only those that are written take memory; on a GPU all do."""
    if DEVICE == "cuda":
        return torch.zeros(size, dtype=dtype, device=DEVICE)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    return torch.frombuffer(mmap.mmap(-1, dtype.itemsize * size, flags=flags), dtype=dtype)


def test_a_large_pool(exercise: ModuleType) -> None:
    """In a pool of more than 2^32 elements, block * stride needs 64 bits."""
    problem = make([2], 2, dtype=torch.float16)
    for name in ("key_cache", "value_cache"):
        cache, last_block = far(2, 1, 16), getattr(problem, name)[int(problem.tables[0, 0])]
        cache[4] = last_block
        setattr(problem, name, cache)
    problem.tables[0, 0] = 4
    why = "block 4 lies 2^32 elements on: blocks * block_stride has overflowed, make blocks 64-bit first"
    check_splits(exercise, problem, why)
    why_slot = "slot 4 lies 2^32 elements on: slot * slot_stride has overflowed, make slots 64-bit first"
    why_head = "KV head 4 lies 2^32 elements on: the heads that _group_heads returns must be 64-bit"
    for axis, num_heads, why in ((1, 1, why_slot), (2, 5, why_head)):
        problem = make([5], 5, dtype=torch.float16, num_heads=num_heads, num_kv_heads=num_heads)
        for name in ("key_cache", "value_cache"):
            near = getattr(problem, name)[int(problem.tables[0, 0])].unsqueeze(0)
            strides = list(torch.empty(near.shape).stride())
            strides[axis] = 2**30
            setattr(problem, name, untouched(4 * 2**30 + 1024, near.dtype).as_strided(near.shape, strides))
            getattr(problem, name).copy_(near)
        problem.tables[0, 0] = 0
        check_splits(exercise, problem, why)


def test_a_huge_batch(exercise: ModuleType) -> None:
    """Row 4 of the queries, or of the table, lies 2^32 elements on: row * stride needs 64 bits."""
    if DEVICE == "cuda":  # a GPU has no address space without memory
        return
    for name, field in (("queries", "queries.token"), ("tables", "tables.row")):
        problem = make([0, 0, 0, 0, 2], 2, dtype=torch.float16)
        near = getattr(problem, name)
        rows = far(*near.shape[1:], dtype=near.dtype)
        rows[4] = near[4]
        setattr(problem, name, rows)
        why = f"row 4 lies 2^32 elements on: row * strides.{field} has overflowed, make row 64-bit first"
        check_splits(exercise, problem, why)


def test_scores_beyond_float16(exercise: ModuleType) -> None:
    """A score is a sum: it has room in float32, but not in the dtype of the keys."""
    problem = make([3], 4, head_dim=64, dtype=torch.float16, scale=0.125)
    problem.queries.fill_(40)
    problem.key_cache[int(problem.tables[0, 0]), :3] = 40
    why = (
        "query . key is 40 * 40 * 64 = 102400 here, and float16 ends at 65504: scores stay in float32, as "
        "tl.dot returns them, and are never rounded to the dtype of the keys"
    )
    check_splits(exercise, problem, why)


def test_nothing_is_rounded_on_the_way(exercise: ModuleType) -> None:
    """Scores and sums have the digits of float32, though queries and keys are float16."""
    why = (
        "a score is query . key in float32, times SCALE: queries, keys and scores are not rounded to float16 "
        "in between"
    )
    problem = make([1, 1, 1], 1, dtype=torch.float16, scale=0.3, lowest=20.0)
    check_splits(exercise, problem, why, tolerance=2e-5)
    problem = make([19], 4, dtype=torch.float16)
    problem.queries.zero_()
    why = "all weights are 1 here, and 19 values are summed: `output` stays in float32 from tile to tile"
    check_splits(exercise, problem, why, tolerance=2e-5)


def test_lanes_that_no_load_defines(exercise: ModuleType) -> None:
    """A lane that `mask` hides holds anything on a GPU, unless `other` says what."""
    why = "weights are exp(score - best), score is SCALE * (query . key), best the largest score of the row"
    for problem in (make([6], 4), make([5], 4, head_dim=5), make([5], 4, num_heads=3)):
        check_splits(exercise, problem, why)
        with undefined_lanes():
            check_splits(exercise, problem, why)


def check_merge(
    exercise: ModuleType,
    splits: list[list[tuple[float, float, float]]],
    lengths: list[int],
    why: str,
    *,
    num_heads: int = 1,
    head_dim: int = 4,
    dtype: torch.dtype = torch.float32,
    far_rows: bool = False,
    far_heads: bool = False,
    many_splits: bool = False,
) -> None:
    """Merge splits given as (best, total, mean value) a row; head h has h added to its values."""
    batch, num_splits = len(splits), max(map(len, splits)) + 1
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    if many_splits:
        num_splits = 2**28
        partial = untouched(batch * num_splits * head_dim, wide).view(batch, 1, num_splits, head_dim)
        statistics = untouched(batch * num_splits * 2, wide).view(batch, 1, num_splits, 2)
    else:
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
    memory = (
        far(num_heads, head_dim + 2, dtype=dtype)
        if far_rows
        else far(1, head_dim + 2, dtype=dtype).transpose(0, 1)
        if far_heads
        else torch.empty(batch, num_heads, head_dim + 2, dtype=dtype, device=DEVICE)
    )
    memory.fill_(-7.0)
    output = memory[..., :head_dim]
    tried = (
        f"splits (best, total, output / total) {splits}, contexts {lengths}, SPLIT_LENGTH {SPLIT}, "
        f"{num_heads} head{'s' * (num_heads > 1)} of {head_dim}{', rows far apart' * far_rows}"
        f"{', heads far apart' * far_heads}; "
        "NaN in splits that were not written"
    )
    sizes = Sizes(
        BLOCK_SIZE=1, SPLIT_LENGTH=SPLIT, NUM_HEADS=num_heads, GROUP=1, HEAD_DIM=head_dim,
        ROW_TILE=TILE, KEY_TILE=TILE, DIM_TILE=16,
    )  # fmt: skip
    drawing, recorded = try_launch(
        tried,
        lambda outside: _why_outside_merge(outside, why),
        lambda: exercise._merge_kernel[(batch, num_heads)](
            partial, statistics, length_ids, output, num_splits, TokenStrides(*output.stride()),
            WINDOW=None, SPLIT_TILE=2, SIZES=sizes,
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
    reads = {name: {index[:3] for index in recorded.read(name)} for name in ("statistics", "partial")}
    read = reads["statistics"] | reads["partial"]
    stray = sorted(index for index in read if index[2] >= len(splits[index[0]]))
    if stray and not reads["partial"] & set(stray):
        why = f"best and total of a split are neighbours: those of the next split lie 2 numbers on. {why}"
    unread = [s for s in range(len(splits[row])) if recorded.accesses and (row, head, s) not in read]
    if unread:
        why = (
            f"split {unread[0]} was written and not read: there are tl.cdiv(length, SPLIT_LENGTH), and the "
            f"last one may not be full. {why}"
        )
    want, came = expected[row, head].tolist(), got[row, head].tolist()
    shown = in_full(want, came)
    check_true(
        f"the output of row {row}, head {head}: {tried}",
        not wrong,
        shown[0],
        f"{shown[1]}\n{drawing}",
        lambda _: _why_merged(want, came, stray, why),
    )
    check_true(
        f"which splits are read: {tried}",
        not stray,
        "those that were written",
        f"row, head, split: {stray[:3]}\n{drawing}",
        "splits from tl.cdiv(length, SPLIT_LENGTH) on were never written: mask their loads, by the length "
        "and not by what they hold",
    )
    check_true(
        f"memory between the heads of the output: {tried}",
        bool((memory[..., head_dim:] == -7).all()),
        "unchanged",
        "written to",
        "only HEAD_DIM of the DIM_TILE lanes belong to the head: mask the store",
    )


def _why_outside_merge(outside: str, why: str) -> str:
    """Why a program may have left an array in the merge."""
    if "partial" in outside:
        return (
            "only HEAD_DIM of the DIM_TILE lanes belong to a head: mask the load of partial. A split begins "
            f"HEAD_DIM elements after the one before it. {why}"
        )
    if "output" in outside:
        return (
            "a head of the output begins at row * output_strides.token + head * output_strides.head and has "
            f"HEAD_DIM elements, fewer than DIM_TILE: mask the store. {why}"
        )
    return why


def _why_merged(expected: list[float], got: list[float], stray: list[Any], why: str) -> str:
    """The misconception that gives this output."""
    if stray:
        return (
            "splits from tl.cdiv(length, SPLIT_LENGTH) on were never written, and read here: mask their "
            f"loads, other=float('-inf') for best and 0 for the rest. {why}"
        )
    if all(number == -7 for number in got):
        return (
            "nothing was written there: the head of a row begins at row * output_strides.token + head * "
            "output_strides.head of the output"
        )
    if not any(expected) and any(map(math.isnan, got)):
        return "no keys, no split: the total is 0, and the output 0 (0 / 0 is NaN)"
    if any(map(math.isnan, got)):
        return f"NaN: 0 / 0, where all weights are 0, or inf - inf. {why}"
    if all(math.isclose(g, e, rel_tol=4e-3, abs_tol=4e-3) for g, e in zip(got, expected, strict=True)):
        return (
            "right but for the last digits: nothing is added to the total, nothing rounded before the store"
        )
    return why


def test_merge_one_split(exercise: ModuleType) -> None:
    """The output is the weighted sum over the sum of weights."""
    why = "divide the sum of weights times values by the sum of weights, once, at the end"
    check_merge(exercise, [[(0.5, 1.0, 3.0)]], [5], why)
    check_merge(exercise, [[(-2.0, 2.5, 1.0)]], [32], why)
    why = (
        "two splits are taken at a time and there is one: the other lane's best is -inf, "
        "other=float('-inf'), since 0 would be the largest of all"
    )
    check_merge(exercise, [[(-200.0, 1.0, 3.0)]], [5], why)


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
    falling = "the last tile of splits has a lower best than those before: best is the largest of all so far"
    check_merge(exercise, [[(100.0, 1.0, 3.0), (90.0, 1.0, 3.0), (0.0, 1.0, 5.0)]], [96], falling)


def test_merge_an_empty_row(exercise: ModuleType) -> None:
    """A row without context has no split that was written, and gets zeros."""
    why = "no keys, no split: the total is 0, and the output 0 (0 / 0 is NaN)"
    check_merge(exercise, [[]], [0], why)
    check_merge(exercise, [[(1.0, 2.0, 3.0)], []], [5, 0], why)


def test_merge_rows_and_heads(exercise: ModuleType) -> None:
    """Program (i, j) merges row i and head j."""
    why = (
        "row i, head j, split s is number (i * NUM_HEADS + j) * num_splits + s of the statistics and partials"
    )
    rows = [[(1.0, 2.0, 3.0)], [(1.0, 2.0, 5.0), (2.0, 1.0, 6.0)]]
    check_merge(exercise, rows, [7, 64], why, num_heads=3)
    check_merge(exercise, rows, [7, 64], why, num_heads=2, head_dim=5)
    check_merge(exercise, rows, [7, 64], why, num_heads=2, dtype=torch.float64)
    check_merge(exercise, rows, [7, 64], "the output has a dtype of its own", dtype=torch.float16)
    why = "a sum of values is 300000, and float16 ends at 65504: only the quotient is rounded, for the store"
    check_merge(exercise, [[(1.0, 1e5, 3.0)]], [5], why, dtype=torch.float16)


def test_merge_a_best_far_above_that_of_the_first(exercise: ModuleType) -> None:
    """The best of all splits is subtracted, wherever it stands."""
    why = (
        "a later split's best is 100 above that of the first split: exp(100) overflows float32. Take the "
        "best of all splits, not of the first one"
    )
    check_merge(exercise, [[(0.0, 1.0, 3.0), (100.0, 1.0, 5.0)]], [50], why)
    check_merge(exercise, [[(0.0, 1.0, 3.0), (1.0, 1.0, 3.0), (100.0, 1.0, 5.0)]], [96], why)


def test_merge_a_huge_batch(exercise: ModuleType) -> None:
    """Row 4 of the output, or of the splits, lies 2^32 elements on."""
    if DEVICE == "cuda":  # a GPU has no address space without memory
        return
    why = "row 4 lies 2^32 elements on: row * output_strides.token has overflowed, make row 64-bit first"
    rows: list[list[tuple[float, float, float]]] = [[], [], [], [], [(1.0, 2.0, 3.0)]]
    check_merge(exercise, rows, [0, 0, 0, 0, 5], why, far_rows=True)
    why = "head 4 lies 2^32 elements on: head * output_strides.head has overflowed, make head 64-bit first"
    check_merge(exercise, [[(1.0, 2.0, 3.0)]], [5], why, num_heads=5, far_heads=True)
    why = (
        "the splits of row 4 lie 2^32 elements on: (row * NUM_HEADS + head) * num_splits has overflowed, or "
        "its product with HEAD_DIM. Make row 64-bit first"
    )
    check_merge(exercise, rows, [0, 0, 0, 0, 5], why, many_splits=True)


def test_merge_lanes_that_no_load_defines(exercise: ModuleType) -> None:
    """A split that `mask` hides holds anything on a GPU, unless `other` says what."""
    why = "divide the sum of weights times values by the sum of weights, once, at the end"
    for head_dim in (4, 16):
        check_merge(exercise, [[(0.5, 1.0, 3.0)]], [5], why, head_dim=head_dim)
        with undefined_lanes():
            check_merge(exercise, [[(0.5, 1.0, 3.0)]], [5], why, head_dim=head_dim)


def check_decode(exercise: ModuleType, problem: Problem) -> None:
    """Compare `decode_attention` with a softmax in float64."""
    used = -(-problem.lengths[:, None] // problem.key_cache.shape[1])
    columns = torch.arange(problem.tables.shape[1], device=DEVICE)
    problem.tables[columns[None, :] >= used] = 0
    tried = f"decode_attention: {words(problem)}"
    outputs: list[Tensor] = []
    drawing, _ = try_launch(
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
            expected, came = in_full(mean.tolist(), got.tolist())
            check_true(
                f"row {row}, head {head} of {tried}",
                torch.allclose(got, mean, rtol=tolerance, atol=tolerance),
                expected,
                f"{came}\n{drawing}",
                "splits and merge are right by themselves: look at what depends on SPLIT_LENGTH and tiles",
            )


def test_the_whole_step(exercise: ModuleType) -> None:
    """`decode_attention` is a softmax over each row's context."""
    check_decode(exercise, make([3], 4))
    check_decode(exercise, make([0, 1, 17], 7, num_heads=6, num_kv_heads=2))
    check_decode(exercise, make([256, 257, 300], 16, num_heads=2, head_dim=8, rising=0.02))
