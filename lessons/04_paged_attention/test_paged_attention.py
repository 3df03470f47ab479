"""Grades lesson 4. Read the tests if you like: they are the specification in numbers.

Slots that were never written hold NaN, as they might in a real pool: whatever reads one shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import unwrap
from itertools import pairwise
from math import exp, fsum, inf, log, nan
from random import Random
from types import ModuleType
from typing import Any
from unittest.mock import patch

from minipaged.course.checks import check, check_close, check_true, only_for, trying

Rows = list[list[list[float]]]  # [num_tokens][num_kv_heads][head_dim]
SOMEBODY_ELSES = 900.0  # what other sequences have written


def pool_of(rows: Rows, table: list[int], block_size: int, num_blocks: int) -> list[Rows]:
    """A pool that holds a sequence's rows where its table says, and NaN in every other slot."""
    num_heads, head_dim = len(rows[0]), len(rows[0][0])
    pool = [
        [[[nan] * head_dim for _ in range(num_heads)] for _ in range(block_size)] for _ in range(num_blocks)
    ]
    for position, row in enumerate(rows):
        pool[table[position // block_size]][position % block_size] = row
    return pool


def shared_pool(rows: Rows, table: list[int], block_size: int, num_blocks: int) -> list[Rows]:
    """The same, but all blocks that the table doesn't name are full of somebody else's numbers."""
    pool = pool_of(rows, table, block_size, num_blocks)
    for block in set(range(num_blocks)) - set(table):
        pool[block] = [[[SOMEBODY_ELSES] for _ in row] for row in pool[block]]
    return pool


def column(numbers: Sequence[float]) -> Rows:
    """One KV head of one dimension: a number a token."""
    return [[[float(number)]] for number in numbers]


def softmax_sum(scores: list[float], values: list[list[float]]) -> tuple[float, float, list[float]]:
    """Maximum, total and weighted sum of all scores at once: the softmax that has them all at hand."""
    maximum = max(scores)
    weights = [exp(score - maximum) for score in scores]
    weighted = [
        fsum(w * value[i] for w, value in zip(weights, values, strict=True)) for i in range(len(values[0]))
    ]
    return maximum, fsum(weights), weighted


def dense(query: list[list[float]], keys: Rows, values: Rows, scale: float) -> list[list[float]]:
    """Attention with all keys and values in one piece."""
    outputs = []
    for head, vector in enumerate(query):
        kv_head = head // (len(query) // len(keys[0]))
        scores = [scale * fsum(q * k for q, k in zip(vector, key[kv_head], strict=True)) for key in keys]
        _, total, weighted = softmax_sum(scores, [value[kv_head] for value in values])
        outputs.append([x / total for x in weighted])
    return outputs


def random_rows(random: Random, *shape: int) -> Any:
    if not shape:
        return random.gauss(0, 1)
    return [random_rows(random, *shape[1:]) for _ in range(shape[0])]


# ---- visible_blocks ---------------------------------------------------------------------------------------


LAST_ENTRY = (
    "the table has an entry for each block that holds a token, and no more to rely on: go up to the last "
    "visible position's block, (end - 1) // block_size, and not one further"
)


def check_visible(
    exercise: ModuleType,
    table: list[int],
    first: int,
    end: int,
    expected: list[list[int]],
    named: int = 9,
    why: str = "",
) -> None:
    """`expected` lists the positions of each block; `named` is how many entries of the table are filled."""
    positions = range(end)
    keys = shared_pool(column(positions), table[:named], 4, 6)
    values = shared_pool(column([100 + p for p in positions]), table[:named], 4, 6)
    tried = f"visible_blocks, block size 4, block_table {table}, positions {first} to {end - 1}"
    with trying(tried, only_for((LookupError, ValueError), why or LAST_ENTRY)):
        got = [(list(k), list(v)) for k, v in exercise.visible_blocks(keys, values, table, first, end)]
    pairs = [(column(block), column([100 + p for p in block])) for block in expected]
    check(
        f"{tried}: pairs (keys, values), key p being p and value p 100 + p",
        got,
        pairs,
        lambda got: why or _not_visible(got, pairs),
    )


def _not_visible(got: list[Any], pairs: list[Any]) -> str:
    numbers, wanted = _numbers(got), _numbers(pairs)
    if any(number != number for number in numbers):
        return (
            "NaN: a slot was handed out that was never written. The last block is treated as full, but it "
            "ends where the context ends: at end - index * block_size, where that is within the block"
        )
    if SOMEBODY_ELSES in numbers:
        return (
            "these are somebody else's: the block table was not asked. Entry j says which block holds part j"
        )
    if numbers and all(len(pair) == 2 and pair[0] == pair[1] != [] for pair in got):
        return "these are the keys twice: the second of a pair comes from value_cache"
    if _first(pairs) % 4 and got[:1] == pairs[:1] and len(got) == len(pairs) and len(numbers) < len(wanted):
        return (
            "`first` cuts the first block only, and each block after it begins at its slot 0: the slice of a "
            "block begins at max(first - index * block_size, 0)"
        )
    if [] in [part for pair in got for part in pair] and len(numbers) < len(wanted):
        return (
            "a block came out empty that has visible slots: end % block_size is 0 where the last block is "
            "full. A block's slice ends at end - index * block_size, or at block_size if that is less"
        )
    if [] in [part for pair in got for part in pair]:
        return "a block without a visible slot is none: nothing is to be yielded for it"
    if len(got) == len(pairs) and all(pair in got for pair in pairs):
        return (
            "the right blocks in the wrong order: first entry 0 of the table, then entry 1, whatever ids "
            "stand there. A sequence's blocks lie in any order in the pool"
        )
    if any(_first(keys) >= 100 for keys, _ in got):
        return "keys come first, and then values"
    if len(numbers) % 2 or any(len(keys) != len(values) for keys, values in got):
        return "keys and values of a block are the same slots of the two caches: as many of each"
    return (
        "positions first to end - 1, each once, cut at the blocks' borders: both ends of a block's slice may "
        "lie inside of it"
    )


def test_visible_blocks_of_one_block(exercise: ModuleType) -> None:
    """A sequence in one block: the slots that are written, and no others."""
    check_visible(exercise, [2], 0, 1, [[0]])
    check_visible(exercise, [2], 0, 3, [[0, 1, 2]])
    why = "block 0 is a block like any other: 0 is falsy in Python, but it is an id here, and not `none`"
    check_visible(exercise, [0], 0, 1, [[0]], why=why)


def test_a_full_block_is_not_followed_by_another(exercise: ModuleType) -> None:
    """An exact multiple of the block size fills its blocks, and needs no further one."""
    check_visible(exercise, [2], 0, 4, [[0, 1, 2, 3]])
    check_visible(exercise, [2, 0], 0, 8, [[0, 1, 2, 3], [4, 5, 6, 7]])


def test_visible_blocks_follow_the_table(exercise: ModuleType) -> None:
    """Block j of a sequence is wherever entry j of its table says, and the last one is not always full."""
    check_visible(exercise, [3, 1], 0, 5, [[0, 1, 2, 3], [4]])
    check_visible(exercise, [5, 0, 3], 0, 10, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]])


def test_entries_past_the_context_are_not_followed(exercise: ModuleType) -> None:
    """A table may be padded: what stands after the last visible block means nothing."""
    check_visible(exercise, [2, 99, -1], 0, 3, [[0, 1, 2]], named=1)
    check_visible(exercise, [2, 0, 99], 0, 8, [[0, 1, 2, 3], [4, 5, 6, 7]], named=2)


def test_a_part_of_the_context(exercise: ModuleType) -> None:
    """`first` may be anywhere: a long context is split into parts that are worked out apart."""
    check_visible(exercise, [2, 0], 1, 3, [[1, 2]])
    check_visible(exercise, [2, 0], 3, 5, [[3], [4]])
    check_visible(exercise, [2, 0], 4, 6, [[4, 5]])
    check_visible(exercise, [2, 0], 5, 8, [[5, 6, 7]])
    check_visible(exercise, [2, 0, 4, 1], 6, 13, [[6, 7], [8, 9, 10, 11], [12]])
    check_visible(exercise, [2, 0, 4], 3, 4, [[3]])


def test_entries_before_the_part_are_not_followed(exercise: ModuleType) -> None:
    """What stands in the table before the first visible block means nothing, but it has its place."""
    why = (
        "entry j is block j of the sequence, whatever the entries before it say: -1 stands in entry 0, and "
        "positions 4 to 7 are in entry 1. Take out no entries, they would all move up"
    )
    check_visible(exercise, [-1, 2], 4, 6, [[4, 5]], why=why)
    check_visible(exercise, [-1, -1, 2], 9, 12, [[9, 10, 11]], why=why)


def test_a_block_that_stands_in_the_table_twice(exercise: ModuleType) -> None:
    """An entry is known by its index: two entries may name the same block."""
    rows = column([7, 8])
    keys, values = pool_of(rows, [1], 2, 2), pool_of(rows, [1], 2, 2)
    tried = "visible_blocks, block size 2, block_table (1, 1), positions 0 to 2"
    why = (
        "entry j holds positions j * block_size on, also if its block stands in the table twice. Go through "
        "the entries by index: the first place of a block id says nothing"
    )
    with trying(tried, only_for((LookupError, ValueError), why)):
        got = [(list(k), list(v)) for k, v in exercise.visible_blocks(keys, values, (1, 1), 0, 3)]
    check(tried, got, [(rows, rows), (rows[:1], rows[:1])], why)


def test_blocks_of_one_slot(exercise: ModuleType) -> None:
    """The block size is the cache's own: here it is 1."""
    keys, values = pool_of(column([0, 1, 2]), [3, 0, 2], 1, 4), pool_of(column([7, 8, 9]), [3, 0, 2], 1, 4)
    tried = "visible_blocks, block size 1, block_table [3, 0, 2], positions 1 to 2"
    why = "the block size is the number of slots of a block: len(key_cache[block])"
    with trying(tried, only_for((LookupError, ValueError), why)):
        got = [(list(k), list(v)) for k, v in exercise.visible_blocks(keys, values, [3, 0, 2], 1, 3)]
    expected = [(column([1]), column([8])), (column([2]), column([9]))]
    check(tried, got, expected, why)


# ---- fold_block -------------------------------------------------------------------------------------------

Folded = tuple[float, float, list[float]]
EMPTY: Folded = (-inf, 0.0, [0.0])
NOT_LARGER = "exp(x) overflows beyond x = 709: subtract the maximum, then no exponent is above 0"


def check_fold(
    exercise: ModuleType,
    partial: Folded,
    scores: list[float],
    values: list[list[float]],
    expected: Folded,
    why: str | Callable[[Any], str],
    raises: str = "",
) -> None:
    shown = f"Partial({', '.join(_short(part) for part in partial)})"
    tried = f"fold_block of {shown}, scores {_short(scores)}, values {values}: maximum, total, weighted"
    with trying(tried, only_for((ArithmeticError, ValueError), raises)):
        got = tuple(exercise.fold_block(_fresh(exercise, partial), scores, values))
    check_close(tried, got, expected, why)


def _fresh(exercise: ModuleType, part: Folded) -> Any:
    """A Partial with a list of its own, since a wrong solution may write into it."""
    return exercise.Partial(part[0], part[1], list(part[2]))


def _short(value: Any) -> str:
    return f"[{', '.join(map(_short, value))}]" if isinstance(value, list) else f"{value:.4g}"


def test_fold_into_nothing(exercise: ModuleType) -> None:
    """The first block: its maximum, the sum of its weights, and the weighted sum, not divided by anything."""

    def why(got: Any) -> str:
        maximum, total, *_ = [*_numbers(got), 0.0, 0.0]
        if total != total or total == inf:
            return (
                "the rescale factor is inverted, or -inf is subtracted from -inf: the factor is "
                "exp(old maximum - new maximum). The old maximum is -inf here, so that factor is 0, and "
                "exp(new maximum - old maximum) would be inf"
            )
        if maximum == -inf and total == 0:
            return "nothing was folded in: a score of 0 is a score. Ask len(scores) == 0, and not any(scores)"
        if abs(maximum) == inf:
            return "the new maximum is the larger one of the old maximum and the scores"
        if abs(total - 1.0) < 1e-9:
            return (
                "the total is 1: softmax was normalised per block. Weights of different blocks can then no "
                "longer be compared; keep the sums, and divide once, after the last block"
            )
        return (
            "a slot weighs exp(score - maximum); total is the sum of weights, weighted that of weight x value"
        )

    check_fold(exercise, EMPTY, [0.0], [[5.0]], (0.0, 1.0, [5.0]), why)
    check_fold(exercise, EMPTY, [0.0, 0.0], [[1.0], [3.0]], (0.0, 2.0, [4.0]), why)
    check_fold(exercise, EMPTY, [0.0, log(3)], [[3.0], [4.0]], (log(3), 4 / 3, [5.0]), why)
    check_fold(exercise, EMPTY, [log(3), 0.0], [[4.0], [3.0]], (log(3), 4 / 3, [5.0]), why)
    two = (-inf, 0.0, [0.0, 0.0])
    check_fold(exercise, two, [0.0, 0.0], [[1.0, 10.0], [3.0, 20.0]], (0.0, 2.0, [4.0, 30.0]), why)


def test_scores_of_any_size(exercise: ModuleType) -> None:
    """Neither large scores nor very negative ones overflow, or lose the sum."""
    why = "a slot weighs exp(score - maximum): the largest score always weighs 1, whatever its size"
    check_fold(exercise, EMPTY, [1000.0], [[5.0]], (1000.0, 1.0, [5.0]), why, NOT_LARGER)
    why = (
        "the maximum of the scores seen, and not 0 or more: relative to 0, exp(-1000) is 0, and nothing "
        "would be left to divide by"
    )
    check_fold(exercise, EMPTY, [-1000.0, -1000.0], [[5.0], [7.0]], (-1000.0, 2.0, [12.0]), why, NOT_LARGER)


def test_no_number_is_as_low_as_minus_infinity(exercise: ModuleType) -> None:
    """Scores may lie below any constant: what has seen nothing has the maximum -inf."""
    for score in (-20_000.0, -1e300):
        why = (
            f"all scores are {score:g} and still the maximum: a finite constant in place of -inf would be "
            "larger, and nothing would be left to divide by"
        )
        check_fold(exercise, EMPTY, [score, score], [[5.0], [7.0]], (score, 2.0, [12.0]), why, why)
        check_fold(exercise, EMPTY, [score], [[5.0]], (score, 1.0, [5.0]), why, why)


def test_a_new_maximum_rescales_what_was_summed(exercise: ModuleType) -> None:
    """Where a score is above the old maximum, total and weighted so far shrink to be relative to it."""

    def why(got: Any) -> str:
        maximum, total, weighted, *_ = [*_numbers(got), 0.0, 0.0, 0.0]
        if abs(maximum - log(2)) > 1e-9:
            return "the new maximum is the larger one of the old maximum and the scores"
        if abs(total - 5.0) < 1e-9 or abs(weighted - 18.0) < 1e-9:
            return (
                "the rescale factor is inverted: exp(old maximum - new maximum) is 1/2 here, and "
                "exp(new maximum - old maximum) is 2"
            )
        if total > 2.5 or weighted > 13:
            return (
                "what was summed so far was not rescaled: both total and weighted are relative to the old "
                "maximum, so both are multiplied by exp(old maximum - new maximum), here 1/2"
            )
        return "rescale by exp(old maximum - new maximum), here 1/2, then add the new slot, which weighs 1"

    check_fold(exercise, (0.0, 2.0, [4.0]), [log(2)], [[10.0]], (log(2), 2.0, [12.0]), why)
    check_fold(exercise, (0.0, 2.0, [4.0]), [0.0, log(2)], [[6.0], [10.0]], (log(2), 2.5, [15.0]), _rescale)


def _rescale(got: Any) -> str:
    return "the rescaling is by exp(old maximum - new maximum), once a block, however many scores there are"


def test_an_old_maximum_stays(exercise: ModuleType) -> None:
    """Where no score is above the old maximum, that stays, and the new slots weigh less than 1."""

    def why(got: Any) -> str:
        if abs(_first(got)) < 1e-9:
            return "the maximum is that of all scores seen so far, and not of this block alone"
        return "nothing is to be rescaled: a new slot weighs exp(score - old maximum), here 1/2"

    check_fold(exercise, (log(2), 2.0, [4.0]), [0.0], [[10.0]], (log(2), 2.5, [9.0]), why)


def test_maxima_far_apart(exercise: ModuleType) -> None:
    """Where the maximum changes by 1000, the smaller side weighs nothing, and nothing overflows."""
    why = "the old maximum is the larger one, and 1000 above: the new slot weighs nothing"
    check_fold(exercise, (500.0, 1.0, [5.0]), [-500.0], [[9.0]], (500.0, 1.0, [5.0]), why, NOT_LARGER)
    why = "the new maximum is the larger one, and 1000 above: what was summed so far weighs nothing"
    check_fold(exercise, (-500.0, 1.0, [5.0]), [500.0], [[9.0]], (500.0, 1.0, [9.0]), why, NOT_LARGER)


def test_folding_no_slots_in(exercise: ModuleType) -> None:
    """A block without scores changes nothing, not even a partial that has seen none."""
    why = "no scores: the partial stays as it was"
    check_fold(exercise, (1.0, 2.0, [4.0]), [], [], (1.0, 2.0, [4.0]), why, why)
    undefined = (
        "-inf minus -inf is NaN: an empty block folded into an empty partial has no maximum to subtract"
    )
    check_fold(exercise, EMPTY, [], [], EMPTY, undefined, undefined)


def test_a_fold_leaves_alone_what_it_was_given(exercise: ModuleType) -> None:
    """`fold_block` returns a new Partial; the one it was given may be folded with another block as well."""
    weighted, scores, values = [4.0], [log(2), 0.0], [[10.0], [6.0]]
    tried = "fold_block of Partial(0, 2, [4]), scores [0.693, 0], values [[10], [6]]"
    with trying(tried):
        exercise.fold_block(exercise.Partial(0.0, 2.0, weighted), scores, values)
    why = "the list inside the Partial was changed: build a new one"
    check(f"weighted of the Partial given to {tried}", weighted, [4.0], why)
    why = "this list is the caller's, and it was changed: put the weights in a list of their own"
    check(f"scores given to {tried}", scores, [log(2), 0.0], why)
    check(f"values given to {tried}", values, [[10.0], [6.0]], why)


def test_blocks_of_any_length_make_one_softmax(exercise: ModuleType) -> None:
    """However a context is cut, folding its pieces gives the sums of one softmax over all of it."""
    random = Random(4)
    scores = [random.uniform(-5, 5) for _ in range(12)]
    values = random_rows(random, 12, 3)
    for size in (12, 4, 1, 5):
        tried = f"12 scores folded {size} at a time: maximum, total, weighted"
        with trying(tried):
            partial = exercise.Partial(-inf, 0.0, [0.0] * 3)
            for start in range(0, 12, size):
                partial = exercise.fold_block(
                    partial, scores[start : start + size], values[start : start + size]
                )
        why = "the sums must not depend on where a block ends: rescale what was summed, and normalise nothing"
        check_close(tried, tuple(partial), softmax_sum(scores, values), why)


# ---- decode_attention -------------------------------------------------------------------------------------


def attend(
    exercise: ModuleType,
    tried: str,
    query: list[list[float]],
    keys: list[Rows],
    values: list[Rows],
    table: list[int],
    length: int,
    raises: str = "",
    scale: float = 1.0,
) -> Any:
    with trying(tried, only_for((ArithmeticError, LookupError, ValueError), raises)):
        return exercise.decode_attention(query, keys, values, table, length, scale=scale)


def test_attention_to_one_token(exercise: ModuleType) -> None:
    """With one token in the context its value is the answer, whatever the score."""
    keys, values = pool_of(column([2]), [1], 4, 2), pool_of(column([7]), [1], 4, 2)
    tried = "decode_attention with a context of one token, value 7"

    def why(got: Any) -> str:
        return _unwritten(got) or "one score: its softmax is 1, so the result is the value itself"

    check_close(tried, attend(exercise, tried, [[3.0]], keys, values, [1], 1), [[7.0]], why)


def test_a_query_of_zeros_gives_the_mean(exercise: ModuleType) -> None:
    """With a query of zeros all scores are 0, all tokens weigh the same, and the result is their mean."""
    keys, values = pool_of(column([5, -3, 8]), [1], 4, 2), pool_of(column([1, 2, 6]), [1], 4, 2)
    tried = "decode_attention of query 0, block size 4, values 1, 2, 6"

    def why(got: Any) -> str:
        return (
            _unwritten(got)
            or "all scores are 0: each of the three tokens weighs a third, and no other slot does"
        )

    check_close(tried, attend(exercise, tried, [[0.0]], keys, values, [1], 3), [[3.0]], why)


def test_every_token_counts_once(exercise: ModuleType) -> None:
    """A block with one token weighs as much as one token, and not as much as a full block."""
    numbers = [1, 2, 3, 4, 10]
    keys, values = pool_of(column([0] * 5), [2, 0], 4, 3), pool_of(column(numbers), [2, 0], 4, 3)
    tried = "decode_attention of query 0, block size 4, values 1, 2, 3, 4 and, in a second block, 10"
    reasons = {
        6.25: "softmax was normalised per block, and the blocks averaged: divide once, after the last block",
        12.5: "softmax was normalised per block, and the blocks added: divide once, after the last block",
        10.0: "only the last block is left: carry the sums on from block to block",
        2.5: "divided by the number of slots, as if the last block were full: divide by the sum of weights",
        20.0: "nothing was divided: the result is weighted / total, after the last block",
    }

    def why(got: Any) -> str:
        return _unwritten(got) or _reason(got, reasons, "the mean of five tokens: 20 / 5")

    check_close(tried, attend(exercise, tried, [[0.0]], keys, values, [2, 0], 5), [[4.0]], why)


def test_the_table_says_where(exercise: ModuleType) -> None:
    """K and V are read where the block table says; other blocks belong to somebody else."""
    numbers = [1, 2, 3, 4, 5, 9]
    keys, values = shared_pool(column([0] * 6), [3, 1], 4, 5), shared_pool(column(numbers), [3, 1], 4, 5)
    tried = "decode_attention of query 0, block size 4, block_table [3, 1], values 1, 2, 3, 4, 5, 9"

    def why(got: Any) -> str:
        return _unwritten(got) or (
            "the block table was not asked: block j of a sequence is not block j of the pool"
            if _first(got) > 100
            else "the mean of six tokens: 24 / 6"
        )

    check_close(tried, attend(exercise, tried, [[0.0]], keys, values, [3, 1], 6), [[4.0]], why)
    padded = "decode_attention with block_table [3, 1, 99], 6 tokens, block size 4"
    raises = "6 tokens fill two blocks: the third entry is padding, and must not be followed"
    check_close(padded, attend(exercise, padded, [[0.0]], keys, values, [3, 1, 99], 6, raises), [[4.0]], why)


def test_scores_make_weights(exercise: ModuleType) -> None:
    """A token weighs exp(score), so a score that is log 3 larger weighs three times as much."""
    keys, values = pool_of(column([0, log(3)]), [0], 2, 1), pool_of(column([0, 4]), [0], 2, 1)
    tried = "decode_attention of query 1, keys 0 and log 3, values 0 and 4, scale 1"
    why = "weights 1 and 3, so (1 x 0 + 3 x 4) / 4: a token weighs exp(query . key x scale) / total"
    check_close(tried, attend(exercise, tried, [[1.0]], keys, values, [0], 2), [[3.0]], why)


def test_scores_are_scaled(exercise: ModuleType) -> None:
    """Each score is multiplied by `scale` before its exponential is taken."""
    keys, values = pool_of(column([0, log(3)]), [0], 2, 1), pool_of(column([0, 4]), [0], 2, 1)
    tried = "decode_attention of query 2, keys 0 and log 3, values 0 and 4, scale 0.5"
    reasons = {
        3.6: "the scale was forgotten: a score is query . key x scale",
        4 * 3**4 / (1 + 3**4): "divided by the scale: a score is query . key x scale",
        3**0.5 * 4 / (1 + 3**0.5): "scaled twice: a score is query . key x scale, once",
    }

    def why(got: Any) -> str:
        return _reason(got, reasons, "a score is query . key x scale, here 0 and log 3")

    check_close(tried, attend(exercise, tried, [[2.0]], keys, values, [0], 2, scale=0.5), [[3.0]], why)


def test_no_other_scale_is_applied(exercise: ModuleType) -> None:
    """`scale` is all the scaling there is, whatever the dimension of a head."""
    keys = pool_of([[[0.0] * 4], [[log(3)] * 4]], [0], 2, 1)
    values = pool_of([[[0.0] * 4], [[4.0] * 4]], [0], 2, 1)
    tried = (
        "decode_attention of query [1, 0, 0, 0], keys all 0 and all log 3, values all 0 and all 4, scale 1"
    )
    why = "`scale` is all: the caller passes 1 / sqrt(head_dim) there, if that is what the model wants"
    got = attend(exercise, tried, [[1.0, 0.0, 0.0, 0.0]], keys, values, [0], 2)
    check_close(tried, got, [[3.0] * 4], why)


def test_large_scores(exercise: ModuleType) -> None:
    """Scores of 1000 overflow nothing, and those of -1000 don't vanish."""
    values = pool_of(column([0, 4]), [0, 1], 1, 2)
    vanished = (
        "exp(-1000) is 0, and so is a sum of such weights: relative to the largest score, which may be far "
        "below 0, one weight is 1"
    )
    for shift, raises in ((1000.0, NOT_LARGER), (-1000.0, vanished)):
        keys = pool_of(column([shift, shift + log(3)]), [0, 1], 1, 2)
        tried = (
            f"decode_attention of query 1, block size 1, keys {shift:g} and {shift:g} + log 3, values 0 and 4"
        )
        got = attend(exercise, tried, [[1.0]], keys, values, [0, 1], 2, raises)
        why = "only differences of scores count: weights 1 and 3, so 3. Subtract the maximum first"
        check_close(tried, got, [[3.0]], why, tolerance=1e-8)


def test_scores_below_any_constant(exercise: ModuleType) -> None:
    """A head begins with the maximum -inf, which no constant replaces."""
    values = pool_of(column([2, 4]), [0, 1], 1, 2)
    for score in (-20_000.0, -1e300):
        keys = pool_of(column([score, score]), [0, 1], 1, 2)
        tried = f"decode_attention of query 1, block size 1, keys {score:g} twice, values 2 and 4"
        why = (
            f"all scores are {score:g}, so each token weighs the same. A head starts from "
            "Partial(-inf, 0.0, zeros): a finite constant in place of -inf is larger than these scores"
        )
        check_close(tried, attend(exercise, tried, [[1.0]], keys, values, [0, 1], 2, why), [[3.0]], why)


def test_grouped_heads(exercise: ModuleType) -> None:
    """Neighbouring query heads share a KV head: h // (num_heads // num_kv_heads)."""
    for num_heads, num_kv_heads in ((6, 3), (6, 2), (4, 2), (2, 1), (2, 2)):
        group = num_heads // num_kv_heads
        rows = [[[float(head + 1)] for head in range(num_kv_heads)]]
        keys, values = pool_of([[[0.0]] * num_kv_heads], [0], 2, 1), pool_of(rows, [0], 2, 1)
        tried = f"decode_attention with {num_heads} query heads, KV heads of values 1 to {num_kv_heads}"
        raises = f"KV head h // {group}: a group is num_heads // num_kv_heads heads, here {group}"
        got = attend(exercise, tried, [[0.0]] * num_heads, keys, values, [0], 1, raises)
        expected = [[float(head // group + 1)] for head in range(num_heads)]
        check_close(tried, got, expected, _head_reason(num_heads, num_kv_heads))


def _head_reason(num_heads: int, num_kv_heads: int) -> Callable[[Any], str]:
    group = num_heads // num_kv_heads
    wrong = {
        "h % num_kv_heads": [h % num_kv_heads for h in range(num_heads)],
        "h % group size": [h % group for h in range(num_heads)],
        "h // num_kv_heads": [h // num_kv_heads for h in range(num_heads)],
        "0": [0] * num_heads,
    }

    def why(got: Any) -> str:
        numbers = [number - 1 for number in _numbers(got)]
        seen = next((f"this is KV head {name}. " for name, heads in wrong.items() if heads == numbers), "")
        return f"{seen}Heads of a group are neighbours: head h reads KV head h // {group}, {group} to a group"

    return why


def test_no_context(exercise: ModuleType) -> None:
    """Where there is nothing to see, the result is zeros: no block is read, and nothing divided by 0."""
    keys, values = pool_of(column([1]), [0], 4, 1), pool_of(column([1]), [0], 4, 1)
    for length in (0, -1):
        tried = f"decode_attention of two heads, context_length {length}, block_table []"
        raises = (
            "without a context the table may be empty and the total is 0: answer with zeros before either"
        )
        got = attend(exercise, tried, [[1.0], [2.0]], keys, values, [], length, raises)
        check_close(tried, got, [[0.0], [0.0]], "no context gives zeros, as many as the query has")
    tried = "decode_attention of a head of 3 dimensions, context_length 0, block_table []"
    check_close(
        tried, attend(exercise, tried, [[1.0, 2.0, 3.0]], keys, values, [], 0), [[0.0] * 3], "no context"
    )


def test_each_head_has_a_list_of_its_own(exercise: ModuleType) -> None:
    """What is written to one head's result is not seen in another head's."""
    keys, values = pool_of(column([1]), [0], 4, 1), pool_of(column([7]), [0], 4, 1)
    why = "one list stands for all heads: [row] * n names the same row n times, so make a list per head"
    for length in (1, 0):
        tried = f"decode_attention of two heads, context_length {length}"
        got = attend(exercise, tried, [[1.0], [2.0]], keys, values, [0], length)
        is_one = isinstance(got[0], list) and got[0] is got[1]
        check_true(tried, not is_one, "a list per head", "the same list for both heads", why)


def test_it_reads_and_changes_nothing(exercise: ModuleType) -> None:
    """Arguments stay as they were, and a second call gives the same answer as the first."""
    keys, values, table = (
        pool_of(column([1, 2, 3]), [1, 0], 2, 3),
        pool_of(column([4, 5, 6]), [1, 0], 2, 3),
        [1, 0],
    )
    query = [[1.0], [0.5]]
    before = repr((query, keys, values, table))
    tried = "decode_attention of two heads, values 4, 5, 6, scale 0.5"
    first = attend(exercise, tried, query, keys, values, table, 3, scale=0.5)
    check(
        f"query, caches and block table after {tried}",
        repr((query, keys, values, table)),
        before,
        "attention reads, it changes nothing",
    )
    second = attend(exercise, tried, query, keys, values, table, 3, scale=0.5)
    check_close(f"{tried}, a second time", second, first, "something was kept from the call before")


def test_it_equals_attention_in_one_piece(exercise: ModuleType) -> None:
    """Over any blocks, with heads of 5 dimensions, it equals the softmax over the whole context at once."""
    for block_size, length in ((1, 1), (1, 3), (3, 2), (3, 3), (3, 4), (4, 11), (4, 12), (16, 17)):
        random = Random(length)
        table = random.sample(range(14), -(-length // block_size))
        rows, values = random_rows(random, length, 2, 5), random_rows(random, length, 2, 5)
        query = [[3 * q for q in head] for head in random_rows(random, 6, 5)]
        caches = pool_of(rows, table, block_size, 14), pool_of(values, table, block_size, 14)
        tried = (
            f"decode_attention, {length} tokens in blocks of {block_size}, 6 heads on 2 KV heads, scale 0.4"
        )
        got = attend(exercise, tried, query, *caches, table, length, scale=0.4)

        def why(got: Any) -> str:
            return _unwritten(got) or (
                "it differs from the softmax over all tokens: every token once, the same KV head for K "
                "and V, no other scale than the one that was passed"
            )

        check_close(tried, got, dense(query, rows, values, 0.4), why)


def test_each_block_is_folded_on_its_own(exercise: ModuleType) -> None:
    """`decode_attention` folds a block at a time, and gathers no scores of the whole context."""
    keys, values = pool_of(column([0] * 5), [2, 0, 1], 2, 3), pool_of(column(range(5)), [2, 0, 1], 2, 3)
    tried = "decode_attention of two heads, 5 tokens in blocks of 2"
    fold, counts = exercise.fold_block, []

    def noted(partial: Any, scores: Any, values: Any) -> Any:
        counts.append(len(scores))
        return fold(partial, scores, values)

    module = getattr(unwrap(exercise.decode_attention), "__globals__", vars(exercise))  # it may be imported
    with patch.dict(module, fold_block=noted):
        attend(exercise, tried, [[1.0], [2.0]], keys, values, [2, 0, 1], 5)
    check_true(
        f"calls of fold_block in {tried}",
        bool(counts),
        "a call for each head and block",
        "no call",
        "fold_block was never called: a softmax over gathered tokens needs room for the whole context. Fold "
        "each block where it lies",
    )
    why = (
        "the tokens of several blocks were gathered and folded at once: fold one block after the other, so "
        "that there is never more than one block's scores"
    )
    check_true(
        f"the most scores in one call of fold_block in {tried}",
        max(counts) <= 2,
        "2, the block size",
        str(max(counts)),
        why,
    )
    got = f"{sum(counts)} scores in calls of {counts}"
    why = "each head folds each block once: 5 scores per head"
    check_true(f"all scores folded in {tried}", sum(counts) == 10, "10 scores, 5 per head", got, why)


class NotedBlocks(list[Any]):
    """A cache that notes which of its blocks is read."""

    def __init__(self, blocks: list[Any], events: list[str]) -> None:
        super().__init__(blocks)
        self.events = events

    def __getitem__(self, block: Any) -> Any:
        self.events.append(f"block {block}")
        return super().__getitem__(block)


def test_a_block_is_folded_before_the_next_is_read(exercise: ModuleType) -> None:
    """No scores, keys or values are put aside: each block is folded before the next one is read."""
    events: list[str] = []
    table = [3, 1, 2]  # not block 0, where anyone may look how large a block is
    keys = NotedBlocks(pool_of(column([0] * 5), table, 2, 4), events)
    values = pool_of(column(range(5)), table, 2, 4)
    tried = "decode_attention of two heads, 5 tokens in blocks [3, 1, 2] of 2"
    fold = exercise.fold_block

    def noted(partial: Any, scores: Any, values: Any) -> Any:
        events.append("fold")
        return fold(partial, scores, values)

    module = getattr(unwrap(exercise.decode_attention), "__globals__", vars(exercise))  # it may be imported
    with patch.dict(module, fold_block=noted):
        attend(exercise, tried, [[1.0], [2.0]], keys, values, table, 5)
    events = [event for event in events if event != "block 0"]
    gathered = [pair for pair in pairwise(events) if "fold" not in pair and pair[0] != pair[1]]
    why = (
        "a block was read before the last one was folded: what is put aside grows with the context. Read a "
        "block, fold it, and only then go on to the next"
    )
    check(f"two blocks read in {tried} without a fold in between", gathered[:1], [], why)


def test_each_call_answers_for_itself(exercise: ModuleType) -> None:
    """Another query has another answer, and the answer that was given before stays as it was."""
    keys, values = pool_of(column([0, 1]), [0], 2, 1), pool_of(column([0, 4]), [0], 2, 1)
    tried = "decode_attention of query 0, then of query 100, keys 0 and 1, values 0 and 4"
    first = attend(exercise, tried, [[0.0]], keys, values, [0], 2)
    check_close(f"the first answer of {tried}", first, [[2.0]], "both scores are 0: the mean of 0 and 4")
    second = attend(exercise, tried, [[100.0]], keys, values, [0], 2)
    why = "the answer of an earlier call was given again: the same cache and length, but another query"
    check_close(f"the second answer of {tried}", second, [[4.0]], why)
    why = "both calls returned the same list, so the second wrote over the first's: make a new list each time"
    check_close(f"the first answer after both of {tried}", first, [[2.0]], why)


def _unwritten(got: Any) -> str:
    """Why a result is NaN, or nothing."""
    if any(x != x for x in _numbers(got)):
        return (
            "NaN: a slot was used that was never written. A weight of 0 does not help, since 0 x NaN is NaN: "
            "slots past the context, and blocks that are not in the table, must not be read at all"
        )
    return ""


def _numbers(got: Any) -> list[float]:
    """All numbers of an answer, whatever its shape: a wrong answer may have any."""
    if isinstance(got, int | float):
        return [float(got)]
    return [x for part in got for x in _numbers(part)] if isinstance(got, list | tuple) else []


def _first(got: Any) -> float:
    return (_numbers(got) or [0.0])[0]


def _reason(got: Any, reasons: dict[float, str], otherwise: str) -> str:
    return next((why for value, why in reasons.items() if abs(_first(got) - value) < 1e-9), otherwise)


# ---- merge_partials ---------------------------------------------------------------------------------------


def check_merge(
    exercise: ModuleType,
    parts: list[Folded],
    expected: list[float],
    why: str | Callable[[Any], str],
    raises: str = "",
) -> None:
    shown = ", ".join(f"({', '.join(_short(x) for x in part)})" for part in parts)
    tried = f"merge_partials of {shown}, each (maximum, total, weighted)"
    partials = [_fresh(exercise, part) for part in parts]
    before = repr(partials)
    with trying(tried, only_for((ArithmeticError, ValueError), raises)):
        got = exercise.merge_partials(partials)
    check_close(tried, got, expected, why)
    check(f"the parts after {tried}", repr(partials), before, "merging changes none of the parts")


def test_merging_one_part(exercise: ModuleType) -> None:
    """One part alone: its weighted sum over its total."""
    why = "the result is weighted / total: this division is the only one"
    check_merge(exercise, [(5.0, 2.0, [6.0])], [3.0], why)
    check_merge(exercise, [(5.0, 2.0, [6.0, 8.0])], [3.0, 4.0], why)


def test_merging_two_parts(exercise: ModuleType) -> None:
    """Parts count by what they weigh: a part with three times the weight counts three times as much."""

    def why(got: Any) -> str:
        if abs(_first(got) - 6.0) < 1e-9:
            return (
                "the average of the two results, 2 and 10: parts don't count the same. Bring all to one "
                "maximum, add totals and weighted sums, then divide"
            )
        return "(2 + 30) / (1 + 3): add weighted sums and totals, relative to the largest maximum, and divide"

    check_merge(exercise, [(0.0, 1.0, [2.0]), (0.0, 3.0, [30.0])], [8.0], why)

    def rescaled(got: Any) -> str:
        if abs(_first(got) - 4.0) < 1e-9:
            return (
                "the factor is inverted: each part is multiplied by exp(its maximum - the largest maximum), "
                "which is 1 or less"
            )
        if abs(_first(got) - 6.0) < 1e-9:
            return (
                "the parts were added as they are, but each is relative to a maximum of its own: multiply "
                "each by exp(its maximum - the largest maximum)"
            )
        return "(2 x 1/3 + 10) / (1/3 + 1): total and weighted both times exp(own maximum - largest maximum)"

    check_merge(exercise, [(0.0, 1.0, [2.0]), (log(3), 1.0, [10.0])], [8.0], rescaled)
    check_merge(exercise, [(log(3), 1.0, [10.0]), (0.0, 1.0, [2.0])], [8.0], rescaled)


def test_merging_parts_with_large_scores(exercise: ModuleType) -> None:
    """Maxima of any size: only their differences count."""
    why = "both have the same maximum, so each counts as it is: (2 + 4) / (1 + 1). -1000 is a maximum like 0"
    below = "relative to 0 both parts weigh exp(-1000), which is 0: bring them to their own largest maximum"
    check_merge(exercise, [(-1000.0, 1.0, [2.0]), (-1000.0, 1.0, [4.0])], [3.0], why, below)
    why = "the part with the larger maximum weighs exp(2000) times as much: bring all to the largest maximum"
    check_merge(exercise, [(1000.0, 1.0, [7.0]), (-1000.0, 1.0, [2.0])], [7.0], why, NOT_LARGER)
    last = (
        "exp(x) overflows beyond x = 709: bring all parts to the largest maximum of all, which isn't always "
        "that of the first part"
    )
    check_merge(exercise, [(-1000.0, 1.0, [2.0]), (1000.0, 1.0, [4.0])], [4.0], why, last)


def test_an_empty_part_is_neutral(exercise: ModuleType) -> None:
    """A part without scores, maximum -inf and total 0, changes nothing, wherever it stands."""
    why = "an empty part weighs exp(-inf) = 0: it must not count in an average, or be divided by its total"
    check_merge(exercise, [(1.0, 2.0, [6.0]), EMPTY], [3.0], why, why)
    check_merge(exercise, [EMPTY, (-1.0, 2.0, [6.0])], [3.0], why, why)


def test_merging_parts_with_the_lowest_scores(exercise: ModuleType) -> None:
    """A maximum may lie below any constant: only -inf says that nothing was seen."""
    for score in (-20_000.0, -1e300):
        why = (
            f"the maximum {score:g} is that of a part with scores: only -inf means that nothing was seen, "
            "and no finite constant takes its place"
        )
        # Beside 1e300 log(total) vanishes, and merging by maximum + log(total) is no mistake: one part there.
        parts = [(score, 1.0, [2.0]), (score, 1.0, [4.0])] if score > -1e15 else [(score, 1.0, [3.0])]
        check_merge(exercise, parts, [3.0], why, why)
        check_merge(exercise, [EMPTY, (score, 2.0, [6.0])], [3.0], why, why)
        why = (
            f"{2 * score:g} is far below {score:g}, so its part weighs nothing: a finite constant in place "
            "of -inf is larger than both, and makes them equal"
        )
        check_merge(exercise, [(score, 1.0, [2.0]), (2 * score, 1.0, [4.0])], [2.0], why, why)


def test_merging_empty_parts_only(exercise: ModuleType) -> None:
    """Where no part has seen anything the result is zeros."""
    why = "-inf minus -inf is NaN, and the total is 0: where all parts are empty, answer with zeros"
    check_merge(exercise, [EMPTY], [0.0], why, why)
    check_merge(exercise, [(-inf, 0.0, [0.0, 0.0]), (-inf, 0.0, [0.0, 0.0])], [0.0, 0.0], why, why)


def test_a_context_split_anywhere(exercise: ModuleType) -> None:
    """Parts of a context, folded apart and merged, give what attention over all of it gives."""
    random = Random(11)
    table, query = [4, 0, 2], [[2.0, -1.0, 3.0]]
    rows, values = random_rows(random, 11, 1, 3), random_rows(random, 11, 1, 3)
    keys, expected = pool_of(rows, table, 4, 5), dense(query, rows, values, 1.0)[0]
    value_cache = pool_of(values, table, 4, 5)
    for cuts in ([0, 11], [0, 4, 11], [0, 5, 9, 11], list(range(12))):
        tried = f"11 tokens in blocks of 4, split into positions {_ranges(cuts)}, each folded, and all merged"
        with trying(tried):
            parts = []
            for first, end in pairwise(cuts):
                part = exercise.Partial(-inf, 0.0, [0.0] * 3)
                for k, v in exercise.visible_blocks(keys, value_cache, table, first, end):
                    scores = [sum(q * x for q, x in zip(query[0], key[0], strict=True)) for key in k]
                    part = exercise.fold_block(part, scores, [value[0] for value in v])
                parts.append(part)
            got = exercise.merge_partials(parts)
            turned = exercise.merge_partials(parts[::-1])
        check_close(tried, got, expected, "the result must not depend on where the context is split")
        check_close(f"{tried}, in reverse order", turned, expected, "the order of the parts doesn't matter")


def _ranges(cuts: list[int]) -> str:
    return ", ".join(
        f"{first} to {end - 1}" if end - first > 1 else f"{first}" for first, end in pairwise(cuts)
    )
