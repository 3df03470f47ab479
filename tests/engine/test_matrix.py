"""Scheduling never changes tokens: every situation, every block size, one oracle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minipaged import LLM, SamplingParams

TOKEN_BYTES = 2 * 2 * 2 * 8 * 8  # the tiny Llama's: K and V, 2 layers, 2 KV heads of 8, float64
AMPLE, TIGHT, JUST_ENOUGH = 1200, 180, 70  # slots; the longest request needs 61
SITUATIONS: dict[str, dict[str, Any]] = {
    "ample": {"slots": AMPLE},
    "without a prefix cache": {"slots": AMPLE, "enable_prefix_caching": False},
    "chunked": {"slots": AMPLE, "max_num_batched_tokens": 5, "max_num_seqs": 5},
    "preempted by recomputation": {"slots": TIGHT},
    "preempted by swap": {"slots": TIGHT, "preemption_mode": "swap", "swap_space": AMPLE * TOKEN_BYTES},
    "swap to little space": {"slots": TIGHT, "preemption_mode": "swap", "swap_space": 40 * TOKEN_BYTES},
    "just enough": {"slots": JUST_ENOUGH},
    "just enough, chunked, swapped": {
        "slots": JUST_ENOUGH,
        "max_num_batched_tokens": 7,
        "max_num_seqs": 7,
        "preemption_mode": "swap",
        "swap_space": AMPLE * TOKEN_BYTES,
    },
}


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("situation", SITUATIONS)
def test_tokens_are_those_of_hugging_face(
    situation: str,
    block_size: int,
    tiny_model: Callable[[str], Path],
    prompts: list[list[int]],
    hf_greedy: Callable[..., list[list[int]]],
) -> None:
    settings = dict(SITUATIONS[situation])
    num_blocks = -(-settings.pop("slots") // block_size)
    llm = LLM(
        str(tiny_model("llama")),
        dtype="float64",
        device="cpu",
        block_size=block_size,
        num_blocks=num_blocks,
        check_invariants=True,
        **settings,
    )
    expected = hf_greedy("llama", prompts, 20)
    greedy = SamplingParams(temperature=0, max_tokens=20)
    batched = llm.generate(prompts, greedy, use_tqdm=False)
    assert [output.outputs[0].token_ids for output in batched] == expected
    again = llm.generate(prompts[-3:], greedy, use_tqdm=False)  # which finds what it can in the cache
    assert [output.outputs[0].token_ids for output in again] == expected[-3:]
    for prompt, tokens in zip(prompts[::4], expected[::4], strict=True):
        (alone,) = llm.generate([prompt], greedy, use_tqdm=False)
        assert alone.outputs[0].token_ids == tokens
    short = [i for i, prompt in enumerate(prompts) if len(prompt) < 9]  # three of them fit into the pool
    three = SamplingParams(n=3, temperature=0, max_tokens=8)
    outputs = llm.generate([prompts[i] for i in short], three, use_tqdm=False)
    for output, i in zip(outputs, short, strict=True):
        assert [sample.token_ids for sample in output.outputs] == [expected[i][:8]] * 3
    if settings.get("preemption_mode") == "swap" and "little" not in situation:
        assert llm.stats().num_swapped_out_blocks > 0
    assert (llm.stats().num_preemptions > 0) == (SITUATIONS[situation]["slots"] < AMPLE)
