"""Scheduling never changes tokens: every situation, every block size, one oracle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from minipaged import LLM, BeamSearchParams, RequestOutput, SamplingParams
from minipaged.engine.schedule import Schedule

TOKEN_BYTES = 2 * 2 * 2 * 8 * 8  # the tiny Llama's: K and V, 2 layers, 2 KV heads of 8, float64
SWAP = {"preemption_mode": "swap", "swap_space": 1200 * TOKEN_BYTES}
SITUATIONS: dict[str, dict[str, Any]] = {
    "ample": {"pool": "ample"},
    "without a prefix cache": {"pool": "ample", "enable_prefix_caching": False},
    "chunked": {"pool": "ample", "max_num_batched_tokens": 5, "max_num_seqs": 5},
    "preempted by recomputation": {"pool": "tight", "ways": {"recompute"}},
    "preempted by swap": {"pool": "tight", "ways": {"swap"}, **SWAP},
    "swap to little space": {
        "pool": "tight",
        "ways": {"swap", "recompute"},
        **SWAP,
        "swap_space": 40 * TOKEN_BYTES,
    },
    "just enough": {"pool": "just enough", "ways": {"recompute"}},
    "just enough, chunked": {
        "pool": "just enough",
        "ways": {"recompute"},
        "max_num_batched_tokens": 9,
        "max_num_seqs": 9,
        "enable_prefix_caching": False,
    },
    "just enough, chunked, swapped": {
        "pool": "just enough",
        "ways": {"swap"},
        "max_num_batched_tokens": 9,
        "max_num_seqs": 9,
        **SWAP,
    },
}
SLOTS = {"ample": 1200, "tight": 180, "just enough": 70}  # for greedy: the longest request needs 61
WIDTH, MAX_TOKENS = 4, 12  # of the beams
Beams = list[tuple[list[int], float]]


def start(folder: Path, situation: str, block_size: int, num_blocks: int) -> tuple[LLM, set[str]]:
    """An engine, and the ways in which it has preempted requests that had begun to answer."""
    settings = dict(SITUATIONS[situation])
    del settings["pool"]
    settings.pop("ways", None)
    llm = LLM(
        str(folder),
        dtype="float64",
        device="cpu",
        block_size=block_size,
        num_blocks=num_blocks,
        check_invariants=True,
        **settings,
    )
    ways: set[str] = set()

    def watch(step: Schedule) -> None:
        for request in step.preempted:
            if all(sequence.num_output_tokens for sequence in request.sequences):
                ways.add("swap" if request.unfinished[0].on_host else "recompute")

    llm.engine.observers.append(watch)
    return llm, ways


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("situation", SITUATIONS)
def test_tokens_are_those_of_hugging_face(
    situation: str,
    block_size: int,
    tiny_model: Callable[[str], Path],
    prompts: list[list[int]],
    hf_greedy: Callable[..., list[list[int]]],
) -> None:
    pool = SITUATIONS[situation]["pool"]
    llm, ways = start(tiny_model("llama"), situation, block_size, -(-SLOTS[pool] // block_size))
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
    assert ways == SITUATIONS[situation].get("ways", set())


@pytest.fixture(scope="module")
def beam_prompts(prompts: list[list[int]]) -> list[list[int]]:
    """Seven of 1 to 32 tokens; two begin alike."""
    return [prompts[i] for i in (10, 9, 7, 5, 4, 3, 0)]


@pytest.fixture(scope="module")
def hf_beams(tiny_model: Callable[[str], Path], beam_prompts: list[list[int]]) -> list[Beams]:
    """The beams of plain `generate` with their scores, one prompt at a time, without padding."""
    model: Any = AutoModelForCausalLM.from_pretrained(
        tiny_model("llama"), dtype=torch.float64, attn_implementation="eager"
    ).eval()
    found = []
    for prompt in beam_prompts:
        ids = torch.tensor([prompt])
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            num_beams=WIDTH,
            num_return_sequences=WIDTH,
            max_new_tokens=MAX_TOKENS,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
        )
        lengths = (output.beam_indices >= 0).sum(dim=1).tolist()
        rows = output.sequences[:, len(prompt) :].tolist()
        scores = output.sequences_scores.tolist()
        found.append([(row[:n], score) for row, n, score in zip(rows, lengths, scores, strict=True)])
    return found


def most_blocks(num_tokens: int, block_size: int) -> int:
    """Blocks of a prompt's beams where they share its full blocks, and nothing that comes after."""
    return num_tokens // block_size + WIDTH * -(-(num_tokens % block_size + MAX_TOKENS - 1) // block_size)


def assert_same_beams(outputs: list[RequestOutput], expected: list[Beams]) -> None:
    for output, beams in zip(outputs, expected, strict=True):
        assert [beam.token_ids for beam in output.outputs] == [tokens for tokens, _ in beams]
        scores = pytest.approx([score for _, score in beams], rel=1e-6, abs=1e-5)  # of sums in float32
        assert [beam.score for beam in output.outputs] == scores


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("situation", SITUATIONS)
def test_beams_are_those_of_hugging_face(
    situation: str,
    block_size: int,
    tiny_model: Callable[[str], Path],
    beam_prompts: list[list[int]],
    hf_beams: list[Beams],
) -> None:
    pool = SITUATIONS[situation]["pool"]
    needs = [most_blocks(len(prompt), block_size) for prompt in beam_prompts]
    num_blocks = {"ample": sum(needs), "tight": max(needs) * 3 // 2, "just enough": max(needs)}[pool]
    llm, ways = start(tiny_model("llama"), situation, block_size, num_blocks)
    params = BeamSearchParams(beam_width=WIDTH, max_tokens=MAX_TOKENS)
    assert_same_beams(llm.beam_search(beam_prompts, params, use_tqdm=False), hf_beams)
    again = llm.beam_search(beam_prompts[:2], params, use_tqdm=False)
    assert_same_beams(again, hf_beams[:2])
    for i in (0, 3, 6):
        assert_same_beams(llm.beam_search([beam_prompts[i]], params, use_tqdm=False), hf_beams[i : i + 1])
    assert ways == SITUATIONS[situation].get("ways", set())
    if pool == "ample":
        hits = [(len(output.prompt_token_ids) - 1) // block_size * block_size for output in again]
        assert [output.num_cached_tokens for output in again] == ([0, 0] if "without" in situation else hits)
