"""Launches and scratch memory follow the contexts of a step; the memory profile sees the largest steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from minipaged import LLM, SamplingParams
from minipaged.engine import memory_profile
from minipaged.engine.memory_profile import run_largest_steps
from minipaged.kernels import attention

MAX_MODEL_LEN = 256


@pytest.fixture
def llm(tiny_model: Callable[[str], Path]) -> LLM:
    """An engine on the interpreted Triton kernels, with steps of 20 tokens and blocks of 4."""
    return LLM(
        str(tiny_model("llama")),
        dtype="float64",
        device="cpu",
        attention_backend="triton",
        block_size=4,
        num_blocks=100,
        max_num_batched_tokens=20,
        max_num_seqs=5,
        max_model_len=MAX_MODEL_LEN,
    )


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The grids of the decode kernel: sequences, programs per sequence for its heads, splits."""
    grids: list[tuple[int, ...]] = []
    kernel = attention._decode_kernel

    class Recorder:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            grids.append(grid)
            return kernel[grid]

    monkeypatch.setattr(attention, "_decode_kernel", Recorder())
    monkeypatch.setattr(attention, "SPLIT_LENGTH", 8)
    return grids


@pytest.mark.parametrize(
    ("num_tokens", "splits"),
    [
        (3, {1}),  # contexts of 4 and 5 tokens: 1 and 2 blocks of 4, room for 8 tokens
        (17, {4}),  # 18 and 19 tokens: 5 blocks, rounded up to 8, room for 32 tokens
        (70, {16}),  # 71 and 72 tokens: 18 blocks, rounded up to 32
    ],
)
def test_the_grid_follows_the_longest_context(
    num_tokens: int, splits: set[int], llm: LLM, launches: list[tuple[int, ...]]
) -> None:
    """Not max_model_len, which has room for 32 splits."""
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    llm.generate([[5] * num_tokens], params, use_tqdm=False)
    assert {grid[2] for grid in launches} == splits


def test_a_prompt_in_the_same_step_widens_no_decode(llm: LLM, launches: list[tuple[int, ...]]) -> None:
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    llm.engine.add_request("short", [5, 6, 7], params)
    llm.engine.step()
    llm.engine.add_request("long", [9] * 90, params)
    for _ in range(3):  # chunks of 19 tokens beside one decode
        llm.engine.step()
    beside = list(launches)
    while llm.engine.has_unfinished_requests():
        llm.engine.step()
    assert len(beside) == 3 * 2  # layers
    assert {(grid[0], grid[2]) for grid in beside} == {(1, 1)}


def test_the_largest_steps_are_tried(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt of a whole step, a decode of every sequence over the longest context, and a draw for all."""
    runner, tried = llm.engine.runner, []

    def decode(queries: torch.Tensor, *others: Any, **options: Any) -> torch.Tensor:
        tried.append(("decode", tuple(others[2].shape)))
        return torch.zeros_like(queries)

    def prefill(queries: torch.Tensor, *others: Any, **options: Any) -> torch.Tensor:
        tried.append(("prefill", len(queries)))
        return torch.zeros_like(queries)

    def sample(logits: torch.Tensor, rows: list[Any]) -> None:
        tried.append(("sample", tuple(logits.shape), len(rows)))
        original(logits, rows)

    original = memory_profile.sample
    monkeypatch.setattr(runner, "backend", runner.backend._replace(decode=decode, prefill=prefill))
    monkeypatch.setattr(memory_profile, "sample", sample)
    run_largest_steps(runner, llm.engine.config, MAX_MODEL_LEN)
    # max_model_len fills 64 blocks of 4.
    assert set(tried) == {("prefill", 20), ("decode", (5, 64)), ("sample", (5, 128), 5)}


def test_the_largest_steps_run(llm: LLM) -> None:
    run_largest_steps(llm.engine.runner, llm.engine.config, MAX_MODEL_LEN)


def test_memory_is_asked_of_the_device_of_the_model(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second GPU has 10 of 16 GiB free. The largest steps take 1 GiB of it."""
    gib = 1 << 30
    device = torch.device("cuda:1")

    def answer(*answers: Any) -> Callable[[object], Any]:
        left = list(answers)

        def ask(asked: object = None) -> Any:
            assert asked == device
            return left.pop(0)

        return ask

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", answer(None))
    monkeypatch.setattr(torch.cuda, "memory_allocated", answer(5 * gib))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", answer(6 * gib))
    monkeypatch.setattr(torch.cuda, "mem_get_info", answer((10 * gib, 16 * gib), (10 * gib, 16 * gib)))
    monkeypatch.setattr(memory_profile, "run_largest_steps", lambda *arguments: None)
    monkeypatch.setattr(llm.engine.runner, "device", device)
    spare = memory_profile.spare_gpu_memory(llm.engine.runner, llm.engine.config, MAX_MODEL_LEN)
    assert spare == int(16 * gib * 0.9) - 6 * gib - 1 * gib
