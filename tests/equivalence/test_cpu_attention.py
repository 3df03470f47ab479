"""What only the CPU's attention kernels promise: threads that change no bit, and sums wider than 16 bits."""

import pytest
import torch
from problems import assert_close, make_problem, oracle, run
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
