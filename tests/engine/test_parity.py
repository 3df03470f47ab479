"""Greedy tokens equal Hugging Face's `generate`, request by request, whatever the engine does meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minipaged import LLM, SamplingParams

ARCHITECTURES = [
    "llama",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "mistral",
    "gemma2",
    "gemma3",
    "phi3",
    "gpt2",
    "opt",
    "gpt_neox",
    "olmo2",
    "granite",
]
MAX_TOKENS = 20


def run(
    folder: Path, prompts: list[list[int]], max_tokens: int = MAX_TOKENS, **settings: Any
) -> tuple[Any, LLM]:
    llm = LLM(str(folder), dtype="float64", device="cpu", **settings)
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=max_tokens), use_tqdm=False)
    llm.engine.check()
    return [output.outputs[0].token_ids for output in outputs], llm


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("block_size", [1, 3, 16, 64])
def test_equals_hugging_face(
    architecture: str,
    block_size: int,
    tiny_model: Callable[[str], Path],
    prompts: list[list[int]],
    hf_greedy: Callable[..., list[list[int]]],
) -> None:
    got, llm = run(
        tiny_model(architecture), prompts, block_size=block_size, num_blocks=-(-1024 // block_size) + 12
    )
    assert got == hf_greedy(architecture, prompts, MAX_TOKENS)
    assert llm.stats().num_preemptions == 0


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_a_pool_so_small_that_requests_are_preempted(
    architecture: str,
    block_size: int,
    tiny_model: Callable[[str], Path],
    prompts: list[list[int]],
    hf_greedy: Callable[..., list[list[int]]],
) -> None:
    got, llm = run(
        tiny_model(architecture),
        prompts,
        block_size=block_size,
        num_blocks=-(-80 // block_size),
        max_num_batched_tokens=24,
    )
    assert got == hf_greedy(architecture, prompts, MAX_TOKENS)
    assert llm.stats().num_preemptions > 0


@pytest.mark.parametrize("budget", [1, 2, 7, 100])
@pytest.mark.parametrize("caching", [True, False])
def test_chunked_prefill_changes_no_token(
    budget: int,
    caching: bool,
    tiny_model: Callable[[str], Path],
    prompts: list[list[int]],
    hf_greedy: Callable[..., list[list[int]]],
) -> None:
    got, _ = run(
        tiny_model("llama"),
        prompts,
        block_size=4,
        num_blocks=200,
        max_num_batched_tokens=budget,
        enable_prefix_caching=caching,
    )
    assert got == hf_greedy("llama", prompts, MAX_TOKENS)


def test_a_second_run_hits_the_cache_and_changes_no_token(
    tiny_model: Callable[[str], Path], prompts: list[list[int]], hf_greedy: Callable[..., list[list[int]]]
) -> None:
    expected = hf_greedy("llama", prompts, MAX_TOKENS)
    first, llm = run(tiny_model("llama"), prompts, block_size=4, num_blocks=400)
    again = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=MAX_TOKENS), use_tqdm=False)
    assert first == [output.outputs[0].token_ids for output in again] == expected
    for output in again:  # all full blocks but never the last token, which has to be computed
        assert output.num_cached_tokens == (len(output.prompt_token_ids) - 1) // 4 * 4


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "qwen3"])
@pytest.mark.parametrize("block_size", [3, 16])
def test_triton_interpreted(
    architecture: str,
    block_size: int,
    tiny_model: Callable[[str], Path],
    prompts: list[list[int]],
    hf_greedy: Callable[..., list[list[int]]],
) -> None:
    some = [prompts[i] for i in (0, 4, 8)]
    got, _ = run(
        tiny_model(architecture), some, 4, block_size=block_size, num_blocks=40, attention_backend="triton"
    )
    assert got == hf_greedy(architecture, some, 4)


@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_plain_python_reference(
    block_size: int,
    tiny_model: Callable[[str], Path],
    prompts: list[list[int]],
    hf_greedy: Callable[..., list[list[int]]],
) -> None:
    some = prompts[2:7]
    got, _ = run(
        tiny_model("gemma2"),
        some,
        6,
        block_size=block_size,
        num_blocks=-(-60 // block_size),
        attention_backend="reference",
    )
    assert got == hf_greedy("gemma2", some, 6)
