"""What only the Triton attention kernels do: splits of any length, and launches."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import triton
from problems import assert_close, chunk, make_problem, means, oracle, run, zero_query
from torch import Tensor

from minipaged.kernels import attention
from minipaged.kernels.attention import decode_attention, prefill_attention

# A masked lane that computes inf - inf or 0 / 0 is a fault even where its result is thrown away.
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def attend(problem) -> Tensor:
    return run(problem, decode_attention, prefill_attention)


@pytest.mark.parametrize("split_length", [48, 32, 16, 5])
def test_splits_merge_to_the_same_mean_for_every_row(split_length, monkeypatch):
    # 33 tokens make 1, 2, 3 and 7 splits (the table has room for an eighth); the row of 1 token leaves all
    # but its first one empty.
    monkeypatch.setattr(attention, "SPLIT_LENGTH", split_length)
    problem = zero_query([[0.0], [float(position) for position in range(33)], []], device=DEVICE)
    assert means(attend(problem)) == pytest.approx([0.0, 16.0, 0.0], abs=1e-5)


def test_more_splits_than_the_merge_takes_at_once(monkeypatch):
    monkeypatch.setattr(attention, "SPLIT_LENGTH", 4)
    problem = make_problem([70, 3, 100, 33], num_heads=8, num_kv_heads=1, dtype=torch.float64, device=DEVICE)
    assert_close(attend(problem), oracle(problem))


@pytest.mark.parametrize("window", [None, 20])
def test_the_width_of_the_tables_changes_no_bit(window, monkeypatch):
    """A row's splits depend on its own length: not on the room beside it, which follows the batch."""
    monkeypatch.setattr(attention, "SPLIT_LENGTH", 16)
    problem = make_problem([33, 9], window=window, device=DEVICE)
    narrow = attend(problem)
    wide = replace(problem, block_tables=torch.nn.functional.pad(problem.block_tables, (0, 50)))
    assert torch.equal(attend(wide), narrow)


@pytest.mark.parametrize("window", [None, 50])
def test_a_prompt_in_chunks_gives_what_the_whole_gives(window):
    """But for the last bits: some BLAS, which NumPy interprets a tile with, round a row by its place."""
    problem = make_problem([90], [90], num_heads=2, window=window, device=DEVICE)
    whole = attend(problem)
    for first, last in ((0, 1), (1, 40), (40, 83), (83, 90)):
        torch.testing.assert_close(
            attend(chunk(problem, first, last)), whole[first:last], rtol=2e-6, atol=2e-6
        )


def test_max_query_length_only_sizes_the_grid():
    problem = make_problem([9, 4], [9, 1], device=DEVICE)
    rows = (
        problem.queries,
        problem.key_cache,
        problem.value_cache,
        problem.block_tables,
        problem.context_lengths,
    )
    guessed = prefill_attention(*rows, problem.query_starts, **problem.options)
    assert torch.equal(guessed, attend(problem))


@pytest.mark.skipif(
    isinstance(attention._decode_kernel, triton.JITFunction), reason="Triton is not interpreted"
)
def test_bfloat16_is_refused_under_interpretation():
    with pytest.raises(TypeError, match="bfloat16, which Triton's interpreter lacks"):
        attend(make_problem([5], dtype=torch.bfloat16))


def test_cpu_tensors_without_interpretation_are_refused_with_the_way_out():
    code = (
        "import torch; from minipaged.kernels.attention import decode_attention;"
        "cache = torch.zeros(1, 4, 1, 16); numbers = torch.ones(1, 1, dtype=torch.int32);"
        "decode_attention(torch.zeros(1, 1, 16), cache, cache, numbers, numbers[0], scale=1.0)"
    )
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert "RuntimeError: queries is a CPU tensor" in done.stderr
    assert "set TRITON_INTERPRET=1 before the first import of triton" in done.stderr
