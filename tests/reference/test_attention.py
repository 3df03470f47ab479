"""Attention over scattered blocks, against a dense float64 softmax and against values worked out by hand.

Every slot that the sequence doesn't own, or has not written, holds NaN, so whatever reads it is seen in the
result.
"""

import math
import random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from minipaged.reference.attention import (
    Partial,
    decode_attention,
    fold_block,
    merge_partials,
    prefill_attention,
    visible_blocks,
)

NAN = math.nan
Array = NDArray[np.float64]


def scatter(rows: list[Any], block_size: int, seed: int) -> tuple[list[list[Any]], list[int]]:
    """A pool in which the rows of a sequence lie in shuffled blocks, and its table. The rest is NaN."""
    empty = [[NAN] * len(rows[0][0])] * len(rows[0]) if rows else [[NAN]]
    num_blocks = -(-len(rows) // block_size)
    pool = [[empty] * block_size for _ in range(num_blocks + 3)]
    table = random.Random(seed).sample(range(num_blocks + 3), num_blocks)
    for position, row in enumerate(rows):
        pool[table[position // block_size]][position % block_size] = row
    return pool, table


def dense(
    queries: Array, keys: Array, values: Array, scale: float, window: int | None, softcap: float | None
) -> Array:
    """Softmax over the whole context at once, in float64, for the last len(queries) positions."""
    group_size = queries.shape[1] // keys.shape[1]
    scores = np.einsum("qhd,khd->hqk", queries, np.repeat(keys, group_size, axis=1)) * scale
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    distance = np.arange(len(keys) - len(queries), len(keys))[:, None] - np.arange(len(keys))[None, :]
    visible = (distance >= 0) & (distance < (window or len(keys)))
    weights = np.exp(scores - scores.max(-1, keepdims=True)) * visible
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", weights, np.repeat(values, group_size, axis=1))


def error(found: list[Any], expected: Array) -> float:
    """The largest difference; NaN where a NaN got in, which no comparison passes."""
    return float(np.abs(np.array(found) - expected).max())


def random_problem(
    length: int, num_queries: int, num_kv_heads: int, group_size: int, seed: int
) -> tuple[Array, Array, Array]:
    generator = np.random.default_rng(seed)
    queries = generator.standard_normal((num_queries, num_kv_heads * group_size, 5))
    keys, values = generator.standard_normal((2, length, num_kv_heads, 5))
    return queries * 3, keys, values  # scores wide enough for the softmax to be far from uniform


def ramp(length: int) -> list[Any]:
    """Values V[j] = j: with a query of zeros, attention gives the mean of the positions it sees."""
    return [[[float(position)]] for position in range(length)]


def zeros(length: int) -> list[Any]:
    return [[[0.0]] for _ in range(length)]


def edge_lengths(block_size: int) -> list[int]:
    around = {1, block_size - 1, block_size, block_size + 1, 2 * block_size, 2 * block_size + 1}
    return sorted(length for length in around if length > 0)


CASES = [(block_size, length) for block_size in (1, 3, 4, 12, 16) for length in edge_lengths(block_size)]
OPTIONS = [(None, None), (1, None), (5, None), (100, None), (None, 1.5), (3, 0.7)]


@pytest.mark.parametrize("group_size", [1, 2, 3])
@pytest.mark.parametrize(("block_size", "length"), CASES)
def test_decode_equals_dense_attention(block_size: int, length: int, group_size: int):
    queries, keys, values = random_problem(length, 1, 2, group_size, seed=length)
    key_cache, table = scatter(keys.tolist(), block_size, seed=length)
    value_cache, _ = scatter(values.tolist(), block_size, seed=length)
    for window, softcap in OPTIONS:
        found = decode_attention(
            queries[0].tolist(),
            key_cache,
            value_cache,
            table,
            length,
            scale=0.4,
            window=window,
            softcap=softcap,
        )
        expected = dense(queries, keys, values, 0.4, window, softcap)[0]
        assert error(found, expected) < 1e-12


@pytest.mark.parametrize("group_size", [1, 2, 3])
@pytest.mark.parametrize(("block_size", "length"), CASES)
def test_prefill_equals_dense_attention(block_size: int, length: int, group_size: int):
    """For a whole prompt, a chunk that starts inside a block, one that starts at a block, and one token."""
    for num_queries in sorted({length, max(length - 2, 1), max(length - block_size, 1), 1}):
        queries, keys, values = random_problem(length, num_queries, 2, group_size, seed=length)
        key_cache, table = scatter(keys.tolist(), block_size, seed=length)
        value_cache, _ = scatter(values.tolist(), block_size, seed=length)
        for window, softcap in OPTIONS:
            options: dict[str, Any] = {"scale": 0.4, "window": window, "softcap": softcap}
            found = prefill_attention(queries.tolist(), key_cache, value_cache, table, length, **options)
            expected = dense(queries, keys, values, 0.4, window, softcap)
            assert error(found, expected) < 1e-12
            newest = queries[-1].tolist()
            assert found[-1] == decode_attention(newest, key_cache, value_cache, table, length, **options)


def test_stale_slots_never_reach_the_sum():
    """Block size 4, three tokens: the fourth slot and the other blocks are NaN. The mean of 1, 2, 6 is 3."""
    nothing = [[[NAN]]] * 4
    key_cache = [nothing, [[[0.0]], [[0.0]], [[0.0]], [[NAN]]], nothing]
    value_cache = [nothing, [[[1.0]], [[2.0]], [[6.0]], [[NAN]]], nothing]
    assert decode_attention([[0.0]], key_cache, value_cache, [1], 3, scale=1.0) == [[3.0]]
    padded = [1, 0, 2, -1]  # entries past the context are never followed
    assert decode_attention([[0.0]], key_cache, value_cache, padded, 3, scale=1.0) == [[3.0]]
    prompt = prefill_attention([[[0.0]]] * 3, key_cache, value_cache, padded, 3, scale=1.0)
    assert prompt == [[[1.0]], [[1.5]], [[3.0]]]


def test_visible_blocks_are_cut_at_both_ends():
    """Block size 4, a sequence in blocks 2 and 0: positions 3 to 5 end one and begin the next."""
    keys = [["k4", "k5", "k6", "k7"], ["?"] * 4, ["k0", "k1", "k2", "k3"]]
    values = [["v4", "v5", "v6", "v7"], ["?"] * 4, ["v0", "v1", "v2", "v3"]]
    cuts = {
        (3, 6): [(["k3"], ["v3"]), (["k4", "k5"], ["v4", "v5"])],
        (4, 8): [(keys[0], values[0])],
        (1, 4): [(keys[2][1:], values[2][1:])],
    }
    for (first, end), expected in cuts.items():
        assert list(visible_blocks(keys, values, [2, 0, -1], first, end)) == expected


def test_table_entries_past_the_context_change_no_bit():
    keys, values = [[[0.3]], [[-1.0]], [[2.0]], [[0.7]], [[1.1]]], ramp(5)
    key_cache, value_cache = [[[[NAN]]] * 4 for _ in range(4)], [[[[NAN]]] * 4 for _ in range(4)]
    for position in range(5):
        key_cache[(2, 0)[position // 4]][position % 4] = keys[position]
        value_cache[(2, 0)[position // 4]][position % 4] = values[position]
    for call, query in ((decode_attention, [[1.0]]), (prefill_attention, [[[1.0]], [[0.5]]])):
        found = [
            call(query, key_cache, value_cache, table, 5, scale=1.0)
            for table in ([2, 0, -1, -1], [2, 0, 3, 3], [2, 0])
        ]
        assert found[0] == found[1] == found[2]
        assert not np.isnan(found[0]).any()


def test_a_chunk_sees_the_cached_tokens_before_it():
    value_cache, table = scatter(ramp(5), 4, seed=0)
    key_cache, _ = scatter(zeros(5), 4, seed=0)
    found = prefill_attention([[[0.0]], [[0.0]]], key_cache, value_cache, table, 5, scale=1.0)
    assert found == [[[1.5]], [[2.0]]]  # (0+1+2+3)/4 and (0+1+2+3+4)/5


@pytest.mark.parametrize("block_size", [1, 3, 4, 16])
def test_a_window_of_four_at_position_nine_sees_six_to_nine(block_size: int):
    value_cache, table = scatter(ramp(10), block_size, seed=1)
    key_cache, _ = scatter(zeros(10), block_size, seed=1)
    assert decode_attention([[0.0]], key_cache, value_cache, table, 10, scale=1.0, window=4) == [[7.5]]
    queries = [[[0.0]]] * 10
    found = prefill_attention(queries, key_cache, value_cache, table, 10, scale=1.0, window=4)
    assert found[9] == [[7.5]]
    assert found[:4] == [[[0.0]], [[0.5]], [[1.0]], [[1.5]]]


def test_blocks_behind_the_window_are_never_read():
    """Position 12 sees 9 to 12: the first block and slot 8 are NaN, the second block isn't even there."""
    value_cache, table = scatter(ramp(13), 4, seed=1)
    key_cache, _ = scatter(zeros(13), 4, seed=1)
    key_cache[table[0]] = value_cache[table[0]] = [[[NAN]]] * 4
    key_cache[table[2]][0] = value_cache[table[2]][0] = [[NAN]]
    table[1] = 99
    assert decode_attention([[0.0]], key_cache, value_cache, table, 13, scale=1.0, window=4) == [[10.5]]


def test_all_columns_of_an_odd_head_size_count():
    """Head size 80: the score is 10 / sqrt(80), in the last column alone; 1 / (1 + exp(-1.1180)) = 0.7536."""
    unit = [0.0] * 79 + [1.0]
    keys, values = [[unit], [[0.0] * 80]], [[[1.0] * 80], [[0.0] * 80]]
    query = [[10.0 * x for x in unit]]
    (output,) = decode_attention(query, [keys], [values], [0], 2, scale=80**-0.5)
    assert output == pytest.approx([0.7536] * 80, abs=5e-5)
    ((last,),) = prefill_attention([query], [keys], [values], [0], 2, scale=80**-0.5)
    assert last == output


def test_softcap_bends_the_scaled_score():
    """Score 4 * 0.5 = 2 capped at 1: tanh(2) = 0.96403, against a score of 0: 1 / (1 + exp(-0.96403))."""
    cache = [[[[1.0]], [[0.0]]]]
    (output,) = decode_attention([[4.0]], cache, cache, [0], 2, scale=0.5, softcap=1.0)
    assert output == pytest.approx([0.723927], abs=1e-6)


def test_each_group_of_query_heads_reads_its_own_kv_head():
    values = [[[1.0], [100.0]]] * 3
    keys = [[[0.0], [0.0]]] * 3
    found = decode_attention([[1.0]] * 14, [keys], [values], [0], 3, scale=1.0)
    assert found == [[1.0]] * 7 + [[100.0]] * 7
    found = prefill_attention([[[1.0]] * 14] * 2, [keys], [values], [0], 3, scale=1.0)
    assert found == [[[1.0]] * 7 + [[100.0]] * 7] * 2


def test_large_scores_do_not_overflow():
    keys, values = [[[1e4]], [[-1e4]], [[1e4]]], [[[1.0]], [[5.0]], [[3.0]]]
    assert decode_attention([[1e3]], [keys], [values], [0], 3, scale=1.0) == [[2.0]]
    assert decode_attention([[-1e3]], [keys], [values], [0], 3, scale=1.0) == [[5.0]]


@pytest.mark.parametrize("block_size", [1, 3, 4, 16])
def test_moving_blocks_changes_no_bit(block_size: int):
    queries, keys, values = random_problem(21, 3, 2, 2, seed=5)
    results = []
    for seed in range(5):
        key_cache, table = scatter(keys.tolist(), block_size, seed)
        value_cache, _ = scatter(values.tolist(), block_size, seed)
        results.append(
            (
                table,
                decode_attention(queries[0].tolist(), key_cache, value_cache, table, 21, scale=0.4),
                prefill_attention(queries.tolist(), key_cache, value_cache, table, 21, scale=0.4),
            )
        )
    assert any(table != results[0][0] for table, _, _ in results)
    assert all(decoded == results[0][1] for _, decoded, _ in results)
    assert all(prefilled == results[0][2] for _, _, prefilled in results)


def test_no_context_gives_zeros():
    cache = [[[[NAN, NAN]]] * 4]
    assert decode_attention([[1.0, 2.0]] * 2, cache, cache, [], 0, scale=1.0) == [[0.0, 0.0]] * 2
    assert decode_attention([[1.0, 2.0]] * 2, cache, cache, [0], 0, scale=1.0) == [[0.0, 0.0]] * 2
    assert prefill_attention([], cache, cache, [], 0, scale=1.0) == []
    assert prefill_attention([], cache, cache, [0], 3, scale=1.0) == []


@pytest.mark.parametrize("block_size", [1, 4])
def test_a_query_before_the_first_position_gives_zeros_and_the_others_are_right(block_size: int):
    cache: list[Any] = [[[[NAN]]] * block_size]
    for num_queries in (1, 2, 6):
        queries = [[[1.0]]] * num_queries
        assert prefill_attention(queries, cache, cache, [], 0, scale=1.0) == [[[0.0]]] * num_queries
    key_cache, table = scatter(zeros(2), block_size, seed=0)
    value_cache, _ = scatter([[[4.0]], [[6.0]]], block_size, seed=0)
    found = prefill_attention([[[0.0]]] * 5, key_cache, value_cache, table, 2, scale=1.0, window=2)
    assert found == [[[0.0]], [[0.0]], [[0.0]], [[4.0]], [[5.0]]]


@pytest.mark.parametrize("window", [0, -1])
def test_a_window_holds_the_token_itself_at_least(window: int):
    cache = [[[[1.0]]]]
    for call, query in ((decode_attention, [[1.0]]), (prefill_attention, [[[1.0]]])):
        with pytest.raises(ValueError, match=f"window must be .*, got {window}"):
            call(query, cache, cache, [0], 1, scale=1.0, window=window)


@pytest.mark.parametrize("softcap", [0.0, -30.0, NAN])
def test_a_softcap_is_positive(softcap: float):
    cache = [[[[1.0]]]]
    for call, query in ((decode_attention, [[1.0]]), (prefill_attention, [[[1.0]]])):
        with pytest.raises(ValueError, match=f"softcap must be .*, got {softcap}"):
            call(query, cache, cache, [0], 1, scale=1.0, softcap=softcap)


def test_fold_block_by_hand():
    """Scores 0 and ln 3 weigh the values 1 and 5 by 1/4 and 3/4, whichever comes first."""
    empty = Partial(-math.inf, 0.0, [0.0])
    low, high = math.log(1.0), math.log(3.0)
    first = fold_block(empty, [low], [[1.0]])
    assert first == Partial(0.0, 1.0, [1.0])
    both = fold_block(first, [high], [[5.0]])
    assert both.maximum == high
    assert (both.total, both.weighted) == (pytest.approx(4 / 3), [pytest.approx(16 / 3)])
    other_order = fold_block(fold_block(empty, [high], [[5.0]]), [low], [[1.0]])
    together = fold_block(empty, [low, high], [[1.0], [5.0]])
    for partial in (both, other_order, together):
        assert merge_partials([partial]) == [pytest.approx(4.0)]
    assert first == Partial(0.0, 1.0, [1.0])  # folding returns a new partial


def test_folding_in_nothing_changes_nothing():
    empty = Partial(-math.inf, 0.0, [0.0])
    assert fold_block(empty, [], []) == empty
    some = fold_block(empty, [2.0, 1.0], [[1.0], [5.0]])
    assert fold_block(some, [], []) == some


def partials(scores: list[float], values: list[list[float]], num_splits: int) -> list[Partial]:
    """Fold equal runs of positions block by block; with more splits than tokens, some parts are empty."""
    size = -(-len(scores) // num_splits)
    parts = []
    for start in range(0, num_splits * size, size):
        part = Partial(-math.inf, 0.0, [0.0] * len(values[0]))
        stop = min(start + size, len(scores))
        for block in range(start, stop, 4):
            end = min(block + 4, stop)
            part = fold_block(part, scores[block:end], values[block:end])
        parts.append(part)
    return parts


@pytest.mark.parametrize("num_splits", [1, 2, 3, 8])
@pytest.mark.parametrize(("length", "expected"), [(1, 0.0), (33, 16.0)])
def test_the_number_of_parts_does_not_matter(length: int, expected: float, num_splits: int):
    values = [[float(position)] for position in range(length)]
    parts = partials([0.0] * length, values, num_splits)
    assert len(parts) == num_splits
    assert merge_partials(parts) == [expected]


@pytest.mark.parametrize("num_splits", [1, 2, 3, 8, 50])
def test_merged_parts_equal_one_softmax(num_splits: int):
    generator = np.random.default_rng(num_splits)
    scores, values = generator.standard_normal(33) * 20, generator.standard_normal((33, 3))
    weights = np.exp(scores - scores.max())
    expected = weights @ values / weights.sum()
    parts = partials(scores.tolist(), values.tolist(), num_splits)
    empty = Partial(-math.inf, 0.0, [0.0] * 3)
    for order in (parts, parts[::-1], [empty, *parts, empty]):
        assert error(merge_partials(order), expected) < 1e-12
    assert merge_partials([empty, *parts, empty]) == merge_partials(parts)


def test_merging_only_empty_parts_gives_zeros():
    assert merge_partials([Partial(-math.inf, 0.0, [0.0, 0.0])] * 3) == [0.0, 0.0]
