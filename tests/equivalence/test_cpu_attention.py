"""What only the CPU's attention kernels promise: threads change no bit, NaN stays with rows that see it."""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from problems import Problem, assert_close, make_problem, oracle, run
from torch import Tensor

from minipaged.kernels.attention_cpu import decode_attention, prefill_attention


def attend(problem) -> Tensor:
    return run(problem, decode_attention, prefill_attention)


@pytest.mark.parametrize("query_lengths", [None, [700, 1, 300]], ids=["decode", "prefill"])
def test_the_number_of_threads_changes_no_bit(query_lengths):
    problem = make_problem([700, 1500, 400], query_lengths, num_heads=6, head_dim=64, block_size=16)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(attend(problem))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
    assert_close(results[0], oracle(problem))


def test_one_query_gets_the_same_bits_on_both_paths():
    decode = make_problem([7, 300, 33], num_heads=6)
    prefill = make_problem([7, 300, 33], [1, 1, 1], num_heads=6)
    assert torch.equal(attend(decode), attend(prefill))


def chunk() -> Problem:
    """The last 90 tokens of 200: tiles with hidden keys on their edges, and steps that every row sees."""
    return make_problem([200], [90], num_heads=6, head_dim=16, block_size=16)


def test_a_nan_in_a_value_reaches_the_rows_that_see_it_and_no_other():
    problem = chunk()
    clean = attend(problem)
    block, offset = int(problem.block_tables[0, 150 // 16]), 150 % 16
    problem.value_cache[block, offset, 0, 3] = math.nan
    result = attend(problem)
    row, group = 150 - 110, 3  # the first query that sees token 150
    assert torch.equal(result[:row], clean[:row])
    assert result[row:, :group, 3].isnan().all()
    result[row:, :group, 3] = clean[row:, :group, 3]
    assert torch.equal(result, clean)


def test_a_nan_in_a_key_reaches_the_rows_that_see_it_and_no_other():
    problem = chunk()
    clean = attend(problem)
    block, offset = int(problem.block_tables[0, 150 // 16]), 150 % 16
    problem.key_cache[block, offset, 1, 0] = math.nan
    result = attend(problem)
    assert result[40:, 3:].isnan().all()
    assert torch.equal(result[:40], clean[:40]) and torch.equal(result[40:, :3], clean[40:, :3])


def test_what_a_window_has_passed_may_be_nan():
    problem = replace(chunk(), window=20)
    clean = attend(problem)
    block, offset = int(problem.block_tables[0, 100 // 16]), 100 % 16
    problem.value_cache[block, offset] = math.nan
    problem.key_cache[block, offset] = math.nan
    result = attend(problem)
    row = 120 - 110  # the first query whose window begins after token 100
    assert result[:row].isnan().all()
    assert torch.equal(result[row:], clean[row:])


@pytest.mark.parametrize("query_lengths", [None, [150]], ids=["decode", "prefill"])
def test_scores_far_apart_neither_overflow_nor_vanish(query_lengths):
    problem = make_problem([300], query_lengths, head_dim=16, scale=40.0)
    result = attend(problem)
    assert result.isfinite().all()
    # A score of 500 has an error of 500 * 2^-23, and so has the softmax weight.
    assert torch.allclose(result.double(), oracle(problem), atol=2e-3)


@pytest.mark.parametrize("cap", [1e-3, 0.2, 5.0, 1e4])
def test_a_soft_cap_is_exact_near_zero_and_far_from_it(cap):
    for query_lengths in (None, [100]):
        problem = make_problem([100], query_lengths, head_dim=16, softcap=cap)
        assert_close(attend(problem), oracle(problem))


def test_queries_before_the_first_start_give_zeros():
    problem = make_problem([6, 9], [2, 3])
    shifted = replace(
        problem,
        queries=torch.cat([torch.full_like(problem.queries[:4], math.nan), problem.queries]),
        query_starts=problem.query_starts + 4,
    )
    result = attend(shifted)
    assert torch.equal(result[:4], torch.zeros_like(result[:4]))
    assert torch.equal(result[4:], attend(problem))


def test_keys_and_values_may_have_different_strides():
    problem = make_problem([40, 7], [12, 1], head_dim=24, num_heads=6, block_size=5)
    heads_first = problem.value_cache.transpose(1, 2).contiguous().transpose(1, 2)
    assert heads_first.stride() != problem.value_cache.stride()
    assert torch.equal(attend(replace(problem, value_cache=heads_first)), attend(problem))


def test_calls_from_several_threads_at_once():
    problem = make_problem([700, 1500, 400], num_heads=6, head_dim=64, block_size=16)
    expected = attend(problem)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: attend(problem), range(24)))
    assert all(torch.equal(result, expected) for result in results)


def test_a_fault_is_found_before_anything_is_read():
    problem = make_problem([40], [40])
    problem.block_tables[0, 9] = 10**9  # the last block of the context: reading it would crash
    with pytest.raises(ValueError, match="block_tables: block 1000000000, the cache has blocks 0 to"):
        attend(problem)
