"""The CPU's vector arithmetic does what each docstring says in plain Python."""

import math

import numpy as np
import pytest
import torch
from numba import njit

from minipaged.kernels import _vector

# A cache's dtype, the integers that stand for it, and the dtype of sums.
DTYPES = {
    "float16": (torch.float16, np.int16, np.float32),
    "bfloat16": (torch.bfloat16, np.uint16, np.float32),
    "float32": (torch.float32, np.float32, np.float32),
    "float64": (torch.float64, np.float64, np.float64),
}
SHIFT = 5
LENGTHS = [1, 13, 16, 35, 64]


@njit
def dot_four(*arguments):
    _vector.dot_four(*arguments)


@njit
def add_four_rows(*arguments):
    _vector.add_four_rows(*arguments)


@njit
def dot_four_with_columns(*arguments):
    _vector.dot_four_with_columns(*arguments)


@njit
def add_to_four_rows(totals, d, weights, cache, starts, shift, skip_zeros):
    _vector.add_to_four_rows(totals, d, weights, cache, starts, shift, skip_zeros)


@njit
def largest(numbers):
    return _vector.largest(numbers)


@njit
def finish_scores(scores, scale, softcap):
    _vector.finish_scores(scores, scale, softcap)


@njit
def hide(scores, key, positions, window):
    _vector.hide(scores, key, positions, window)


@njit
def fill_exp(numbers):
    for i in range(numbers.size):
        numbers[i] = _vector.exp(numbers[i])


@njit
def fetch_four(cache, i, starts, shift, depth):
    _vector.fetch_four(cache, i, starts, shift, depth)


class World:
    """A cache of rows in random order, as compiled code gets it and as plain floats, and random weights."""

    def __init__(self, name: str, depth: int) -> None:
        dtype, stand_in, self.number = DTYPES[name]
        self.random = np.random.default_rng(depth)
        numbers = torch.from_numpy(self.random.standard_normal(9 * (depth + 3) + SHIFT)).to(dtype)
        self.plain = numbers.double().tolist()
        bits = numbers.view(torch.int16) if dtype.itemsize == 2 else numbers
        self.cache = bits.numpy().view(stand_in)
        self.starts = self.random.permutation(9) * (depth + 3)

    def draw(self, *shape: int) -> np.ndarray:
        return self.random.standard_normal(shape).astype(self.number)

    def row(self, i: int, depth: int) -> list[float]:
        start = self.starts[i] + SHIFT
        return self.plain[start : start + depth]

    def assert_close(self, result: np.ndarray, expected: np.ndarray) -> None:
        allowed = 1e-5 if self.number is np.float32 else 1e-13
        np.testing.assert_allclose(result, expected, rtol=allowed, atol=allowed)


@pytest.fixture(params=DTYPES)
def name(request):
    return request.param


@pytest.mark.parametrize("depth", LENGTHS)
def test_dot_products_of_one_query_with_four_keys(name, depth):
    world = World(name, depth)
    query, scores = world.draw(depth), world.draw(10)
    expected = scores.astype(float)
    expected[3:7] = [np.dot(query.astype(float), world.row(3 + u, depth)) for u in range(4)]
    dot_four(scores, 3, query, world.cache, world.starts, SHIFT)
    world.assert_close(scores, expected)


@pytest.mark.parametrize("depth", LENGTHS)
def test_a_sum_of_four_weighted_rows(name, depth):
    world = World(name, depth)
    weights, total = world.draw(9), world.draw(depth)
    expected = total.astype(float)
    for u in range(4):
        expected += float(weights[3 + u]) * np.array(world.row(3 + u, depth))
    add_four_rows(total, weights, 3, world.cache, world.starts, SHIFT)
    world.assert_close(total, expected)


@pytest.mark.parametrize("depth", LENGTHS)
def test_dot_products_of_64_columns_with_four_keys(name, depth):
    world = World(name, depth)
    columns, scores = world.draw(depth, 64), world.draw(9, 64)
    expected = scores.astype(float)
    for u in range(4):
        expected[3 + u] = np.array(world.row(3 + u, depth)) @ columns.astype(float)
    dot_four_with_columns(scores, 3, columns, world.cache, world.starts, SHIFT)
    world.assert_close(scores, expected)


@pytest.mark.parametrize("skip_zeros", [False, True])
@pytest.mark.parametrize("depth", LENGTHS)
def test_sums_of_weighted_rows_for_64_columns(name, depth, skip_zeros):
    world = World(name, depth)
    weights, totals = world.draw(7, 64), world.draw(depth, 64)
    weights[:, ::3] = 0
    expected = totals.astype(float)
    first = max(0, (depth - 1) // 4 * 4)  # the last rows, perhaps fewer than four
    for d in range(first, depth):
        expected[d] += sum(weights[i].astype(float) * world.row(i, depth)[d] for i in range(7))
    add_to_four_rows(totals, first, weights, world.cache, world.starts, SHIFT, skip_zeros)
    world.assert_close(totals, expected)


def test_a_nan_reaches_the_columns_that_give_it_weight_and_no_other(name):
    world = World(name, 4)
    nan = torch.tensor([math.nan], dtype=DTYPES[name][0])
    bits = nan.view(torch.int16).numpy() if nan.itemsize == 2 else nan.numpy()
    world.cache[world.starts[2] + SHIFT + 1] = bits.view(world.cache.dtype)[0]
    weights, totals = world.draw(7, 64), np.zeros((4, 64), world.number)
    weights[2, 10:], weights[5, 0] = 0, math.nan
    add_to_four_rows(totals, 0, weights, world.cache, world.starts, SHIFT, True)
    expected = np.zeros((4, 64), bool)
    expected[1, :10] = expected[:, 0] = True
    assert (np.isnan(totals) == expected).all()


def test_fetching_changes_nothing_and_may_point_anywhere(name):
    world = World(name, 64)
    before = world.cache.copy()
    fetch_four(world.cache, 0, np.array([0, 2**40, -(2**40), 7]), SHIFT, 64)
    assert (world.cache.view(np.uint8) == before.view(np.uint8)).all()


@pytest.mark.parametrize("number", [np.float32, np.float64])
def test_the_largest_number(number):
    numbers = np.random.default_rng(0).standard_normal(48).astype(number)
    for place in range(48):
        numbers[place] += 10
        assert largest(numbers) == max(numbers.tolist())
        numbers[place] -= 10
    assert largest(numbers[:0]) == largest(np.full(16, math.nan, number)) == -math.inf
    numbers[::5], numbers[7] = math.nan, 9
    assert largest(numbers) == 9


@pytest.mark.parametrize("number", [np.float32, np.float64])
def test_scores_are_scaled_and_bent(number):
    allowed = 4e-7 if number is np.float32 else 1e-15
    scores = np.concatenate([np.linspace(-300, 300, 601), [1e-5, -1e-5, 0.2]]).astype(number)
    for softcap in (0.0, 0.5, 30.0):
        result = scores.copy()
        finish_scores(result, number(0.125), number(softcap))
        scaled = [0.125 * float(score) for score in scores]
        expected = [softcap * math.tanh(score / softcap) for score in scaled] if softcap else scaled
        np.testing.assert_allclose(result, expected, rtol=allowed)


@pytest.mark.parametrize("number", [np.float32, np.float64])
def test_exp_of_what_is_not_above_zero(number):
    numbers = np.concatenate([np.linspace(-86, 0, 1000), [-math.inf, np.finfo(number).min]]).astype(number)
    result = numbers.copy()
    fill_exp(result)
    allowed = 3e-7 if number is np.float32 else 1e-15
    np.testing.assert_allclose(result, [math.exp(x) for x in numbers.tolist()], rtol=allowed)
    assert (result[-2:] == 0).all()
    result[0] = math.nan
    fill_exp(result)
    assert np.isnan(result[0])


def test_a_key_is_hidden_from_rows_before_it_and_from_rows_a_window_after_it():
    positions = np.arange(20)
    for key, window in ((0, 1), (7, 4), (19, 2**62)):
        scores = np.ones(20, np.float32)
        hide(scores, key, positions, window)
        seen = [position - window < key <= position for position in range(20)]
        assert scores.tolist() == [1.0 if each else -math.inf for each in seen]
