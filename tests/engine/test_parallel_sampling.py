"""Samples of one prompt: each is what a request of its own would give, and the prompt is stored once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minipaged import LLM, BeamSearchParams, SamplingParams
from minipaged.errors import InvalidRequestError


def start(folder: Path, **settings: Any) -> LLM:
    settings = {"block_size": 4, "num_blocks": 400} | settings
    return LLM(str(folder), dtype="float64", device="cpu", **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"block_size": 1},
        {"block_size": 16, "enable_prefix_caching": False},
        {"max_num_batched_tokens": 6, "max_num_seqs": 6},
        {"num_blocks": 30},
        {"num_blocks": 30, "enable_prefix_caching": False, "max_num_batched_tokens": 13},
    ],
)
def test_sample_i_is_the_request_with_seed_plus_i(
    settings: dict[str, Any], tiny_model: Callable[[str], Path], prompts: list[list[int]]
) -> None:
    some = prompts[2:9]
    options: dict[str, Any] = {"temperature": 0.9, "top_p": 0.95, "max_tokens": 14, "logprobs": 1}
    alone = start(tiny_model("llama"))
    grouped = start(tiny_model("llama"), **settings)
    outputs = grouped.generate(some, SamplingParams(n=3, seed=11, **options), use_tqdm=False)
    for i in range(3):
        expected = alone.generate(some, SamplingParams(seed=11 + i, **options), use_tqdm=False)
        for output, single in zip(outputs, expected, strict=True):
            assert output.outputs[i].index == i
            assert output.outputs[i].token_ids == single.outputs[0].token_ids
            assert output.outputs[i].finish_reason == single.outputs[0].finish_reason
            assert output.outputs[i].cumulative_logprob == pytest.approx(single.outputs[0].cumulative_logprob)
    assert (grouped.stats().num_preemptions > 0) == ("num_blocks" in settings)


def test_greedy_samples_are_all_the_greedy_answer(
    tiny_model: Callable[[str], Path], prompts: list[list[int]], hf_greedy: Callable[..., list[list[int]]]
) -> None:
    llm = start(tiny_model("llama"))
    outputs = llm.generate(prompts, SamplingParams(n=4, temperature=0, max_tokens=20), use_tqdm=False)
    for output, expected in zip(outputs, hf_greedy("llama", prompts, 20), strict=True):
        assert [sample.token_ids for sample in output.outputs] == [expected] * 4


@pytest.mark.parametrize(("num_tokens", "copies"), [(5, 3), (6, 3), (7, 3), (8, 0), (9, 3)])
def test_the_prompt_is_computed_once_and_a_partial_block_copied_once_less_than_there_are_samples(
    num_tokens: int, copies: int, tiny_model: Callable[[str], Path]
) -> None:
    llm = start(tiny_model("llama"))
    computed, copied, peak = 0, [], 0

    def watch(step: Any) -> None:
        nonlocal computed, peak
        computed += sum(row.stop - row.start for row in step.rows)
        copied.extend(step.copies)
        peak = max(peak, llm.engine.blocks.allocator.num_in_use)

    llm.engine.observers.append(watch)
    params = SamplingParams(n=4, seed=0, max_tokens=3, ignore_eos=True)
    llm.generate([[*range(3, 3 + num_tokens)]], params, use_tqdm=False)
    assert computed == num_tokens + 4 * 2  # the third token's K and V are never needed
    assert len(copied) == copies
    # The full blocks of the prompt once, and what each sample has of its own: 2 more tokens.
    shared, own = num_tokens // 4, -(-(num_tokens % 4 + 2) // 4)
    assert peak == shared + 4 * own
    saved = llm.stats().blocks_saved_by_sharing
    assert 0 < saved < 0.75


def test_a_group_comes_back_with_its_sharing(tiny_model: Callable[[str], Path]) -> None:
    """Preempted by hand in the middle: it comes back to as many blocks, and computes no token twice."""
    llm = start(tiny_model("llama"), enable_prefix_caching=False, num_blocks=64)
    engine = llm.engine
    params = SamplingParams(n=4, seed=5, max_tokens=12, ignore_eos=True)
    expected = llm.generate([[*range(3, 33)]], params, use_tqdm=False)[0]
    engine.add_request("r", [*range(3, 33)], params)
    for _ in range(6):
        engine.step()
    held = engine.blocks.allocator.num_in_use
    (request,) = engine.scheduler.running
    engine.scheduler.running.remove(request)
    engine.scheduler._free(request)
    engine.scheduler.waiting.append(request)
    assert engine.blocks.allocator.num_in_use == 0
    steps: list[Any] = []
    engine.observers.append(steps.append)
    done = engine.step()
    assert engine.blocks.allocator.num_in_use <= held + 4  # at most a new block each, for the newest token
    # 30 prompt tokens, of which 28 are in full blocks and so shared; the rest, and 6 tokens, of each sample.
    assert sum(row.stop - row.start for row in steps[0].rows) == 28 + 4 * (2 + 6)
    while engine.has_unfinished_requests():
        done = engine.step()
    assert [o.token_ids for o in done[0].outputs] == [o.token_ids for o in expected.outputs]


def test_samples_end_one_by_one_and_give_back_what_is_theirs(tiny_chat_model: Path) -> None:
    llm = LLM(str(tiny_chat_model), dtype="float64", device="cpu", block_size=4, num_blocks=100)
    params = SamplingParams(n=5, seed=1, max_tokens=40, stop=["e", "a", "Z"])
    outputs: list[Any] = []
    in_use: list[int] = []
    llm.engine.add_request("r", "hello there", params)
    while llm.engine.has_unfinished_requests():
        outputs += llm.engine.step()
        llm.engine.check()
        in_use.append(llm.engine.blocks.allocator.num_in_use)
    last = outputs[-1]
    assert last.finished and all(sample.finish_reason for sample in last.outputs)
    assert len({tuple(sample.token_ids) for sample in last.outputs}) == 5
    assert not any(letter in sample.text for sample in last.outputs for letter in "eaZ")
    assert [output.finished for output in outputs].count(True) == 1


def test_more_samples_than_a_step_may_hold_are_refused(tiny_model: Callable[[str], Path]) -> None:
    llm = start(tiny_model("llama"), max_num_seqs=3)
    with pytest.raises(InvalidRequestError, match="n=4 sequences can never run together"):
        llm.generate([[5]], SamplingParams(n=4), use_tqdm=False)
    assert len(llm.generate([[5]], SamplingParams(n=3), use_tqdm=False)[0].outputs) == 3


def test_a_group_that_outgrows_the_pool_ends_with_what_it_has(tiny_model: Callable[[str], Path]) -> None:
    llm = start(tiny_model("llama"), num_blocks=6)
    params = SamplingParams(n=3, seed=2, max_tokens=50, ignore_eos=True)
    (output,) = llm.generate([[*range(3, 11)]], params, use_tqdm=False)
    # 2 shared blocks leave 4 for three samples: one block each, and the fifth token finds none.
    assert [sample.finish_reason for sample in output.outputs] == ["capacity"] * 3
    assert [len(sample.token_ids) for sample in output.outputs] == [5] * 3


def test_aborted_in_the_middle(tiny_model: Callable[[str], Path]) -> None:
    llm = start(tiny_model("llama"))
    llm.engine.add_request("r", [5, 6, 7], SamplingParams(n=3, max_tokens=30, ignore_eos=True))
    for _ in range(4):
        llm.engine.step()
    llm.engine.abort_request("r")
    (output,) = llm.engine.step()
    assert [sample.finish_reason for sample in output.outputs] == ["abort"] * 3
    assert llm.engine.blocks.allocator.num_in_use == 0


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(n=5, max_tokens=4, seed=0, ignore_eos=True),
        BeamSearchParams(beam_width=5, max_tokens=4, ignore_eos=True),
    ],
)
def test_a_group_that_forked_and_can_not_come_back_ends_and_stops_nobody(
    params: SamplingParams | BeamSearchParams, tiny_model: Callable[[str], Path]
) -> None:
    """Preempted between its fork and its first copy, it needs more blocks than the pool has."""
    llm = start(tiny_model("llama"), num_blocks=5, enable_prefix_caching=False)
    llm.engine.add_request("a", [7, 8, 9], SamplingParams(max_tokens=6, ignore_eos=True, temperature=0))
    llm.engine.add_request("b", [7, 8, 9, 10, 11], params)
    llm.engine.add_request("c", [7], SamplingParams(max_tokens=2, ignore_eos=True))
    reasons: dict[str, set[str | None]] = {}
    for _ in range(40):
        for output in llm.engine.step() if llm.engine.has_unfinished_requests() else []:
            reasons[output.request_id] = {each.finish_reason for each in output.outputs}
    assert reasons == {"a": {"length"}, "b": {"capacity"}, "c": {"length"}}
