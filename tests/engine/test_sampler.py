"""Sampled tokens against distributions by hand or by transformers, and draws that nothing disturbs."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from minipaged.engine import logits as processors
from minipaged.engine import sampler
from minipaged.engine.logits import token_weights
from minipaged.engine.sampler import InvalidLogitsError, SampledToken, SamplingRow, sample, uniform
from minipaged.errors import MinipagedError
from minipaged.sampling_params import SamplingParams

HAND = torch.tensor([[0.5, 0.3, 0.15, 0.05]], dtype=torch.float64).log()
NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NO_GPU])]


def _row(seed=0, position=0, prompt=(), output=(), stop=(), **params) -> SamplingRow:
    return SamplingRow(SamplingParams(**params), seed, position, prompt, output, stop)


def _ids(logits, rows) -> list[int]:
    return [token.token_id for token in sample(logits, rows)]


def _probabilities(logits, **params) -> torch.Tensor:
    weights = token_weights(logits, [_row(**params)] * len(logits))
    return weights / weights.sum(-1, keepdim=True)


def _kept(logits, **params) -> list[int]:
    return _probabilities(logits, **params)[0].nonzero().flatten().tolist()


# ------------------------------------------------------------------ greedy


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_greedy_takes_the_lowest_id_of_the_largest(dtype, device):
    vocab = 49_152
    logits = torch.zeros(5, vocab, dtype=dtype, device=device)
    for row, tied in enumerate(
        [[7, 9], [0, vocab - 1], [4096, 4097, 40_000], [31, 32], [15, 16, 17, 63, 64]]
    ):
        logits[row, tied] = 3.0
    rows = [_row(temperature=0)] * 5
    assert _ids(logits, rows) == [7, 0, 4096, 31, 15]
    assert _ids(torch.zeros(2, vocab, dtype=dtype, device=device), rows[:2]) == [0, 0]
    # The same through the slow path, where logits have been copied and changed.
    busy = [_row(temperature=0, presence_penalty=1.0, output=[5])] * 5
    assert _ids(logits, busy) == [7, 0, 4096, 31, 15]


def test_greedy_costs_one_transfer(monkeypatch):
    transfers = []
    tolist = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: transfers.append(self.shape) or tolist(self))
    monkeypatch.setattr(sampler, "_choose", None)
    monkeypatch.setattr(sampler, "log_probabilities", None)
    logits = torch.randn(64, 1000)
    tokens = sample(logits, [_row(temperature=0, max_tokens=9, min_tokens=5, output=[1, 2])] * 64)
    assert [token.token_id for token in tokens] == logits.argmax(-1).tolist()
    assert tokens[0].logprob is None and tokens[0].top_logprobs is None
    assert transfers == [(64,), (64,)]  # sample's, and this test's


def test_no_rows():
    assert sample(torch.zeros(0, 10), []) == []


@pytest.mark.parametrize("top_k", [1, 5])
def test_a_tiny_temperature_is_greedy_and_does_not_overflow(top_k):
    logits = torch.tensor([[-1e30, 1e30, 0.0, -torch.inf], [2.0, 2.0, 1.0, 0.0]])
    for temperature in (5e-324, 1e-300, 1e-30, 1e-6):
        rows = [_row(seed=1, position=p, temperature=temperature, top_k=top_k) for p in (0, 1)]
        first, second = _ids(logits, rows)
        assert first == 1 and second in (0, 1)


def test_a_huge_temperature_is_uniform_over_what_is_possible():
    logits = torch.tensor([[-1e30, 1e30, 0.0, -torch.inf]])
    assert _probabilities(logits, temperature=1e300)[0].tolist() == [1 / 3, 1 / 3, 1 / 3, 0]


# ------------------------------------------------------------------ filters


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({"top_p": 0.6}, [0, 1]),  # the token that crosses the threshold belongs to the nucleus
        ({"top_p": 0.49}, [0]),
        ({"top_p": 0.51}, [0, 1]),
        ({"top_p": 0.81}, [0, 1, 2]),
        ({"top_p": 0.96}, [0, 1, 2, 3]),
        ({"top_p": 1e-9}, [0]),
        ({"top_p": 5e-324}, [0]),
        ({"top_p": 1.0}, [0, 1, 2, 3]),
        ({"top_k": 1}, [0]),
        ({"top_k": 3}, [0, 1, 2]),
        ({"top_k": 4}, [0, 1, 2, 3]),
        ({"top_k": 10**9}, [0, 1, 2, 3]),
        ({"top_k": -1}, [0, 1, 2, 3]),
        ({"min_p": 0.29}, [0, 1, 2]),  # of 0.5, so 0.145
        ({"min_p": 0.31}, [0, 1]),
        ({"min_p": 1.0}, [0]),
        # top-p works on what top-k leaves: 0.5 / 0.8 = 0.625
        ({"top_k": 2, "top_p": 0.6}, [0]),
        ({"top_k": 2, "top_p": 0.7}, [0, 1]),
        ({"top_p": 0.9, "min_p": 0.5}, [0, 1]),
    ],
)
def test_filters_by_hand(params, kept):
    assert _kept(HAND, **params) == kept
    assert _kept(HAND.flip(-1), **params) == [3 - token for token in reversed(kept)]


def test_probabilities_by_hand():
    assert _probabilities(HAND, top_p=0.6)[0].tolist() == pytest.approx([0.625, 0.375, 0, 0], rel=1e-9)
    squares = [0.25, 0.09, 0.0225, 0.0025]
    expected = [square / sum(squares) for square in squares]
    assert _probabilities(HAND, temperature=0.5)[0].tolist() == pytest.approx(expected, rel=1e-9)


def test_of_equal_tokens_a_filter_keeps_the_lowest_ids():
    logits = torch.tensor([[1.0, 2.0, 2.0, 0.0, 2.0, 2.0]])
    assert _kept(logits, top_k=2) == [1, 2]
    assert _kept(logits, top_k=1) == [1]
    assert _kept(logits, top_p=1e-9) == [1]
    assert _kept(logits, top_p=0.6) == [1, 2, 4]
    assert _kept(logits, min_p=1.0) == [1, 2, 4, 5]  # a threshold, not a count
    uniform_logits = torch.zeros(1, 5000)
    assert _kept(uniform_logits, top_p=0.5) == list(range(2500))
    assert _kept(uniform_logits, top_k=700) == list(range(700))


def test_the_order_of_ids_makes_no_difference_to_a_wide_nucleus():
    # Wider than the 256 and 2,048 tokens that are looked at first.
    logits = torch.randn(3, 20_000, generator=torch.Generator().manual_seed(0)).double()
    for top_p in (0.01, 0.3, 0.9, 0.999):
        p, order = logits[1].softmax(-1).sort(descending=True)
        count = int((p.cumsum(-1) < top_p).sum()) + 1
        rows = [_row(top_p=0.5), _row(top_p=top_p), _row()]
        kept = token_weights(logits, rows)[1].nonzero().flatten()
        assert kept.tolist() == sorted(order[:count].tolist())


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_filters_are_those_of_transformers(data):
    vocab = data.draw(st.integers(1, 60))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32)))
    spread = data.draw(st.sampled_from([0.1, 1.0, 5.0]))
    rows, logits, expected = [], [], []
    for _ in range(data.draw(st.integers(1, 4))):
        row = spread * torch.randn(1, vocab, generator=generator, dtype=torch.float64)
        temperature = data.draw(st.floats(0.1, 3.0))
        top_k = data.draw(st.sampled_from([0, 1, 3, 20, 1000]))
        top_p = data.draw(st.sampled_from([1.0, 0.123, 0.456, 0.789, 0.987]))
        min_p = data.draw(st.sampled_from([0.0, 0.0123, 0.123]))
        warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
        warpers += [TopKLogitsWarper(top_k)] if top_k else []
        warpers += [TopPLogitsWarper(top_p)] if top_p < 1 else []
        warpers += [MinPLogitsWarper(min_p)] if min_p else []
        rows.append(_row(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p))
        logits.append(row)
        expected.append(warpers(None, row.clone()).softmax(-1))
    weights = token_weights(torch.cat(logits), rows)
    probabilities = weights / weights.sum(-1, keepdim=True)
    torch.testing.assert_close(probabilities, torch.cat(expected), rtol=1e-6, atol=1e-9)


def test_weights_are_whole_numbers_with_exact_sums():
    for vocab in (1, 2, 1000, 49_152, 262_208):
        weights = token_weights(torch.zeros(1, vocab), [_row()])
        assert torch.equal(weights, weights.round())
        assert float(weights.max()) * vocab < 2**53
    logits = 4 * torch.randn(1, 49_152, generator=torch.Generator().manual_seed(1))
    weights = token_weights(logits, [_row()])[0]
    assert int(weights.sum()) == sum(int(weight) for weight in weights.tolist())
    exact = logits.double().softmax(-1)[0]
    assert 0.5 * float((weights / weights.sum() - exact).abs().sum()) < 1e-6


# ------------------------------------------------------------------ penalties


def test_repetition_penalty_is_that_of_transformers():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 40, generator=generator, dtype=torch.float64)
    prompt, output = [3, 3, 7, 39], [1, 7, 0]
    for penalty in (0.5, 1.3, 2.0):
        changed = RepetitionPenaltyLogitsProcessor(penalty)(
            torch.tensor([prompt + output]), logits[1:2].clone()
        )
        row = _row(temperature=0, repetition_penalty=penalty, prompt=prompt, output=output)
        rows = [_row(temperature=0), row, _row(temperature=0, presence_penalty=0.5)]
        work = logits.clone()
        processors._penalise_repetition(work, rows)
        torch.testing.assert_close(work[1:2], changed, rtol=1e-15, atol=0)
        assert torch.equal(work[[0, 2]], logits[[0, 2]])
        assert _ids(logits, rows)[1] == int(changed.argmax())


@pytest.mark.parametrize(
    ("params", "token"),
    [
        ({}, 0),
        ({"repetition_penalty": 3.0}, 1),  # 3/3, 2, -1, -2
        ({"repetition_penalty": 3.0, "prompt": [1]}, 0),  # 3/3, 2/3
        ({"repetition_penalty": 0.4, "output": [1]}, 1),  # 3, 2/0.4
        ({"presence_penalty": 0.9}, 0),  # 2.1, 2
        ({"presence_penalty": 1.1}, 1),  # 1.9, 2
        ({"presence_penalty": 1.1, "output": [0, 0]}, 1),
        ({"presence_penalty": 0.9, "output": [0, 0]}, 0),  # once, however often it occurs
        ({"frequency_penalty": 0.6, "output": [0]}, 0),  # 2.4, 2
        ({"frequency_penalty": 0.6, "output": [0, 0]}, 1),  # 1.8, 2
        ({"frequency_penalty": -1.1, "output": [1]}, 1),  # 3, 3.1
        ({"presence_penalty": 2.0, "prompt": [0], "output": []}, 0),  # the prompt doesn't count
        ({"presence_penalty": 0.6, "frequency_penalty": 0.3, "output": [0, 0]}, 1),  # 3 - 0.6 - 0.6
    ],
)
def test_penalties_by_hand(params, token):
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        logits = torch.tensor([[3.0, 2.0, -1.0, -2.0]], dtype=dtype)
        before = logits.clone()
        given = {"output": [0], **params}
        assert _ids(logits, [_row(temperature=0, **given)]) == [token]
        assert torch.equal(logits, before)


def test_a_negative_logit_is_multiplied_by_the_repetition_penalty():
    logits = torch.tensor([[-1.0, -1.5]])
    assert _ids(logits, [_row(temperature=0, repetition_penalty=2.0, prompt=[0])]) == [1]


def test_ids_beyond_the_logits_are_left_out():
    logits = torch.tensor([[3.0, 2.0]])
    far = [5, 10**6]
    row = _row(temperature=0, repetition_penalty=2.0, presence_penalty=1.0, prompt=far, output=[*far, 0])
    assert _ids(logits, [row]) == [1]
    assert _ids(logits, [_row(temperature=0, min_tokens=1, stop=far)]) == [0]


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_no_stop_token_comes_before_min_tokens(temperature):
    logits = torch.full((1, 200), -5.0)
    logits[0, [1, 106]], logits[0, 50] = 30.0, 9.0
    for count in range(5):
        row = _row(temperature=temperature, min_tokens=3, output=[9] * count, stop=(1, 106))
        assert (_ids(logits, [row])[0] in (1, 106)) == (count >= 3)


# ------------------------------------------------------------------ draws


def test_the_hash_is_splitmix64():
    # The first numbers of splitmix64 for the seed 1234567, as published with its reference code.
    golden, state, numbers = sampler._GOLDEN, 1234567, []
    for _ in range(5):
        state = (state + golden) % 2**64
        numbers.append(sampler._mix(state))
    assert numbers == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_a_number_is_fixed_by_seed_and_position():
    assert uniform(7, 3) == uniform(7, 3) == uniform(7 + 2**64, 3)
    assert uniform(-1, 3) == uniform(2**64 - 1, 3)
    numbers = {uniform(seed, position) for seed in range(100) for position in range(100)}
    assert len(numbers) == 10_000
    assert uniform(5 + sampler._GOLDEN, 3) != uniform(5, 4)  # no two seeds walk the same sequence
    assert all(0 <= number < 1 for number in numbers)


@pytest.mark.parametrize(
    "walk", [lambda i: (5, i), lambda i: (i, 5), lambda i: (i, i), lambda i: (i, 1000 - i)]
)
def test_numbers_are_uniform_and_independent_along_seeds_and_positions(walk):
    numbers = np.array([uniform(*walk(i)) for i in range(20_000)])
    counts = np.bincount((numbers * 20).astype(int), minlength=20)
    assert _chi_square(counts, np.full(20, 1000.0)) < 43.8  # 19 degrees of freedom, 0.1 %
    pairs = (numbers[:-1] * 5).astype(int) * 5 + (numbers[1:] * 5).astype(int)
    assert _chi_square(np.bincount(pairs, minlength=25), np.full(25, 19_999 / 25)) < 51.2  # 24, 0.1 %


def _chi_square(counts, expected) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


def _counts(logits, draws=20_000, **params) -> np.ndarray:
    rows = [_row(seed=11, position=position, **params) for position in range(draws)]
    tokens = _ids(logits.expand(draws, -1), rows)
    return np.bincount(tokens, minlength=logits.shape[-1])


def test_draws_over_positions_follow_the_softmax(monkeypatch):
    monkeypatch.setattr(sampler, "ROWS_AT_ONCE", 1000)  # for speed
    logits = 2 * torch.randn(1, 30, generator=torch.Generator().manual_seed(3))
    expected = logits.double().softmax(-1)[0].numpy() * 20_000
    counts = _counts(logits)
    many = expected >= 5
    assert _chi_square(counts[many], expected[many]) < many.sum() + 5 * math.sqrt(2 * many.sum())
    assert 0.5 * np.abs(counts / 20_000 - expected / 20_000).sum() < 0.02


def test_draws_over_seeds_follow_the_filtered_distribution(monkeypatch):
    monkeypatch.setattr(sampler, "ROWS_AT_ONCE", 1000)
    rows = [_row(seed=seed, position=40, top_p=0.6, temperature=1.0) for seed in range(20_000)]
    counts = np.bincount(_ids(HAND.expand(20_000, -1), rows), minlength=4)
    assert counts[2:].tolist() == [0, 0]
    assert counts[0] / 20_000 == pytest.approx(0.625, abs=0.012)  # 3.5 standard deviations


def test_a_draw_is_the_inverse_of_the_cumulative_distribution():
    cumulative = [0.5, 0.8, 0.95, 1.0]
    for position in range(500):
        number = uniform(3, position)
        expected = next(token for token, sum_ in enumerate(cumulative) if number < sum_)
        assert _ids(HAND, [_row(seed=3, position=position)]) == [expected]


@pytest.mark.parametrize("number", [0.0, 1 - 2**-53])
def test_the_ends_of_the_unit_interval_give_possible_tokens(number, monkeypatch):
    monkeypatch.setattr(sampler, "uniform", lambda seed, position: number)
    for vocab in (3, 4, 7, 66, 255, 257, 1000):
        logits = torch.zeros(1, vocab)
        logits[0, [0, -1]] = -torch.inf
        assert _ids(logits, [_row()]) == [1 if number == 0 else vocab - 2]


MIXED = [
    {"temperature": 0},
    {"temperature": 0.7},
    {"temperature": 1.0, "top_k": 5},
    {"temperature": 1.3, "top_p": 0.8},
    {"temperature": 1.0, "min_p": 0.1, "logprobs": 3},
    {"temperature": 0, "repetition_penalty": 1.5, "prompt": [1, 2], "output": [3]},
    {"temperature": 0.9, "presence_penalty": 1.0, "frequency_penalty": 0.5, "output": [3, 3, 4]},
    {"temperature": 0, "logprobs": 2},
    {"temperature": 1.0, "min_tokens": 3, "stop": (0, 1), "top_p": 0.95, "top_k": 40},
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("vocab", "dtype"),
    [(7, torch.float32), (129, torch.float64), (1001, torch.bfloat16), (32_003, torch.float32)],
)
def test_neighbours_never_change_a_row(vocab, dtype, device):
    generator = torch.Generator().manual_seed(vocab)
    one = 3 * torch.randn(1, vocab, generator=generator)
    for params in MIXED:
        row = _row(seed=77, position=12, **params)
        for dose in (one, one * 0.01):
            alone = sample(dose.to(device, dtype), [row])[0]
            for size, at in [(2, 1), (9, 8), (20, 13)]:
                logits = 10 * torch.randn(size, vocab, generator=generator)
                logits[at] = dose
                company = [_row(seed=i, position=3, **MIXED[(i + at) % len(MIXED)]) for i in range(size)]
                company[at] = row
                found = sample(logits.to(device, dtype), company)[at]
                assert found.token_id == alone.token_id
                assert found.top_logprobs == (
                    pytest.approx(alone.top_logprobs) if alone.top_logprobs else None
                )


@pytest.mark.parametrize("vocab", [5, 1001, 32_003, 49_152])
def test_weights_are_equal_to_the_bit_in_any_company(vocab):
    generator = torch.Generator().manual_seed(vocab)
    one = 3 * torch.randn(1, vocab, generator=generator, dtype=torch.float64)
    for params in (
        {},
        {"top_k": 40},
        {"top_p": 0.9},
        {"temperature": 0.3, "top_k": 99, "top_p": 0.5, "min_p": 0.01},
    ):
        alone = token_weights(one, [_row(**params)])
        for size, at in [(2, 1), (5, 0), (8, 6)]:
            logits = torch.randn(size, vocab, generator=generator, dtype=torch.float64)
            logits[at] = one
            rows = [_row(top_p=0.3, top_k=200)] * size
            rows[at] = _row(**params)
            assert torch.equal(token_weights(logits, rows)[at], alone[0])


def test_order_of_calls_and_of_rows_makes_no_difference():
    logits = torch.randn(12, 500, generator=torch.Generator().manual_seed(5))
    rows = [_row(seed=i % 3, position=i, **MIXED[i % len(MIXED)]) for i in range(12)]
    forward = _ids(logits, rows)
    assert _ids(logits, rows) == forward
    assert _ids(logits.flip(0), rows[::-1]) == forward[::-1]
    assert [_ids(logits[i : i + 1], rows[i : i + 1])[0] for i in range(12)] == forward


def test_siblings_differ():
    logits = torch.zeros(8, 1000)
    tokens = _ids(logits, [_row(seed=42 + i, position=9) for i in range(8)])
    assert len(set(tokens)) == 8
    # Sample i at one position is not sample i + 1 at the position before.
    ahead = [_ids(logits[:1], [_row(seed=43, position=p)])[0] for p in range(20)]
    behind = [_ids(logits[:1], [_row(seed=42, position=p + 1)])[0] for p in range(20)]
    assert sum(a == b for a, b in zip(ahead, behind, strict=True)) <= 2


def test_no_generator_is_touched():
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    sample(torch.zeros(4, 50), [_row(seed=i) for i in range(4)])
    assert torch.equal(torch.random.get_rng_state(), before)


# ------------------------------------------------------------------ log-probabilities


def test_logprobs_are_those_of_the_unchanged_logits():
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]])
    row = _row(temperature=0, repetition_penalty=100.0, prompt=[0, 1], logprobs=2)
    token = sample(logits, [row])[0]
    log_sum = math.log(sum(math.exp(x) for x in (3, 2, 1, 0)))
    assert token.token_id == 2
    assert token.logprob == pytest.approx(1 - log_sum, abs=1e-6)
    assert list(token.top_logprobs) == [0, 1, 2]  # two asked for, and the chosen one
    assert list(token.top_logprobs.values()) == pytest.approx(
        [3 - log_sum, 2 - log_sum, 1 - log_sum], abs=1e-6
    )


def test_logprobs_come_most_likely_first():
    token = sample(HAND[:, [3, 0, 2, 1]], [_row(temperature=0, logprobs=3)])[0]
    assert list(token.top_logprobs) == [1, 3, 2]


def test_logprobs_of_zero_are_the_chosen_token_alone():
    tokens = sample(HAND.expand(3, -1), [_row(logprobs=count, temperature=0) for count in (0, 1, 20)])
    assert [list(token.top_logprobs) for token in tokens] == [[0], [0], [0, 1, 2, 3]]
    assert tokens[0].logprob == pytest.approx(math.log(0.5), abs=1e-15)  # float64 logits stay float64


def test_of_equal_logprobs_the_lowest_ids_are_returned():
    logits = torch.zeros(1, 1000, dtype=torch.bfloat16)
    token = sample(logits, [_row(logprobs=3, seed=8)])[0]
    assert list(token.top_logprobs) == [0, 1, 2, token.token_id]
    assert token.logprob == pytest.approx(-math.log(1000), rel=1e-6)


def test_only_rows_that_ask_get_logprobs():
    tokens = sample(HAND.expand(2, -1), [_row(temperature=0), _row(temperature=0, logprobs=1)])
    assert tokens[0] == SampledToken(0, None, None)
    assert tokens[1].top_logprobs == {0: tokens[1].logprob}


def test_logprobs_of_half_precision_are_computed_in_float32():
    logits = (3 * torch.randn(1, 500, generator=torch.Generator().manual_seed(2))).bfloat16()
    token = sample(logits, [_row(temperature=0, logprobs=5)])[0]
    exact = logits.double().log_softmax(-1)[0]
    assert token.top_logprobs == pytest.approx({i: float(exact[i]) for i in token.top_logprobs}, abs=2e-6)


# ------------------------------------------------------------------ what has no answer


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("params", [{"temperature": 0}, {}, {"top_p": 0.5}, {"top_k": 2}, {"min_p": 0.1}])
def test_rows_without_a_distribution_are_named(params, device):
    inf, nan = torch.inf, torch.nan
    broken = [[-inf] * 4, [0.0, nan, 1.0, 2.0], [nan] * 4, [inf, 0.0, 0.0, 0.0]]
    for bad in broken:
        logits = torch.tensor([[1.0, 2.0, 3.0, 4.0], bad, [1.0, 2.0, 3.0, 4.0], bad], device=device)
        with pytest.raises(InvalidLogitsError, match=r"row 1, 3:") as caught:
            sample(logits, [_row(**params)] * 4)
        assert caught.value.rows == (1, 3)
        assert isinstance(caught.value, MinipagedError) and "\n" not in str(caught.value)


@pytest.mark.parametrize("masked", [1.0, torch.nan, torch.inf])
def test_a_row_whose_mask_hides_what_is_wrong_is_named(masked):
    logits = torch.tensor([[masked, -torch.inf if masked == 1.0 else 1.0]])
    for temperature in (0, 1):
        with pytest.raises(InvalidLogitsError, match="row 0"):
            sample(logits, [_row(temperature=temperature, min_tokens=1, stop=(0,))])


def test_a_row_with_one_possible_token_is_fine():
    logits = torch.full((1, 9), -torch.inf)
    logits[0, 4] = -3.0
    for params in MIXED[:5]:
        assert _ids(logits, [_row(**params)]) == [4]


def test_logits_of_the_wrong_shape_or_type_are_refused():
    for logits in (torch.zeros(2, 4), torch.zeros(4), torch.zeros(1, 4, dtype=torch.int64)):
        with pytest.raises(ValueError, match=r"logits must be floats of shape \[1, vocab\], got "):
            sample(logits, [_row()])


# ------------------------------------------------------------------ on a GPU, where every wait costs


class _Waits(TorchDispatchMode):
    """Counts how often the host asks a tensor for a number."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


def _mixed_rows(count) -> list[SamplingRow]:
    """Greedy and drawn rows, every filter and every penalty."""
    kinds = [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 5, "presence_penalty": 0.5},
        {"temperature": 1.3, "top_p": 0.8, "repetition_penalty": 1.2},
        {"temperature": 2.0, "min_p": 0.05, "top_k": 40, "top_p": 0.95},
    ]
    return [_row(i, i, [1, 2], [3, 3, 4], [7], min_tokens=9, **kinds[i % 5]) for i in range(count)]


def test_where_waits_cost_nothing_waits_and_tokens_are_the_same(monkeypatch):
    """As on a GPU, but on a CPU: all rows at once, and no number is read before the tokens."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(40, 1000, generator=generator).mul(3).round()  # many are equal
    rows = _mixed_rows(40)
    expected = _ids(logits, rows)
    with _Waits() as on_a_cpu:
        sample(logits, rows)
    calls = []
    choose = sampler._choose
    monkeypatch.setattr(sampler, "_choose", lambda *given: calls.append(len(given[1])) or choose(*given))
    for module in (sampler, processors):
        monkeypatch.setattr(module, "waits_cost", lambda device: True)
    with _Waits() as waits:
        assert _ids(logits, rows) == expected
    assert calls == [40]  # even the greedy ones have penalties
    assert on_a_cpu.count > 0 and waits.count == 0
