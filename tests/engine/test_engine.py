"""The engine as its callers see it: what it refuses, how requests end, and that nothing is ever lost."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from minipaged import LLM, SamplingParams
from minipaged.engine.sampler import uniform
from minipaged.errors import (
    BackendUnavailableError,
    InvalidConfigError,
    InvalidRequestError,
    MinipagedError,
)
from minipaged.reference.prefix_chain import PrefixChain

GREEDY = SamplingParams(temperature=0, max_tokens=8)


@pytest.fixture
def make(tiny_model: Callable[[str], Path]) -> Callable[..., LLM]:
    def make(**settings: Any) -> LLM:
        settings = {"block_size": 4, "num_blocks": 40} | settings
        return LLM(str(tiny_model("llama")), dtype="float64", device="cpu", **settings)

    return make


@pytest.fixture
def talker(tiny_chat_model: Path) -> LLM:
    return LLM(str(tiny_chat_model), dtype="float64", device="cpu", block_size=4, num_blocks=80)


def tokens(llm: LLM, prompt: Any, params: SamplingParams = GREEDY) -> list[int]:
    return llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].token_ids


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "prompt is empty"),
        ([[]], "prompt is empty"),
        ("", "no tokenizer"),
        ("text", "no tokenizer"),
        ([5, 128], "token ids from 0 to 127, got 128"),
        ([5, -1], "token ids from 0 to 127, got -1"),
        ([[5, 1.0]], "token ids from 0 to 127, got 1.0"),
        ([[True]], "token ids from 0 to 127, got True"),
        ([["5"]], "token ids from 0 to 127, got '5'"),
        ([None], "a list of token ids, got None"),
        (None, "a list of token ids, got None"),
        (3.5, "a list of token ids, got 3.5"),
        (b"abc", "a list of token ids, got b'abc'"),
        ({"prompt": "a"}, r"a list of token ids, got \{'prompt': 'a'\}"),
        ([{"prompt_token_ids": [5]}], r"a list of token ids, got \{"),
        ({5, 6}, r"a list of token ids, got \{5, 6\}"),
        ([[5] * 256], "prompt has 256 tokens, at most 255 are allowed"),
        ([[5] * 161], "prompt has 161 tokens and can never fit the pool: 40 blocks of 4 hold 160"),
    ],
)
def test_bad_prompts_are_refused_in_one_line(make: Callable[..., LLM], prompt: Any, message: str) -> None:
    llm = make()
    if prompt == []:
        assert llm.generate([], GREEDY, use_tqdm=False) == []
        prompt = [[]]
    with pytest.raises(InvalidRequestError, match=message) as error:
        llm.generate(prompt, GREEDY, use_tqdm=False)
    assert "\n" not in str(error.value)
    assert not llm.engine.has_unfinished_requests()


def test_integers_of_numpy_and_torch_are_token_ids(make: Callable[..., LLM]) -> None:
    llm = make()
    expected = tokens(llm, [5, 6, 7])
    for prompt in (np.array([5, 6, 7]), [np.array([5, 6, 7])], torch.tensor([5, 6, 7]), (5, np.int32(6), 7)):
        assert tokens(llm, prompt) == expected


def test_a_text_that_is_none_is_refused(talker: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="prompt is no valid text"):
        talker.generate("\ud800", GREEDY, use_tqdm=False)


def test_one_bad_prompt_among_good_ones_leaves_nothing_behind(make: Callable[..., LLM]) -> None:
    llm = make()
    with pytest.raises(InvalidRequestError):
        llm.generate([[5, 6], [7, 999], [8]], GREEDY, use_tqdm=False)
    assert not llm.engine.has_unfinished_requests()
    assert len(tokens(llm, [5, 6])) == 8


@pytest.mark.parametrize("settings", [{"max_model_len": 257}, {"kv_cache_memory": "1KB"}, {"num_blocks": 0}])
def test_settings_that_this_model_cannot_have(make: Callable[..., LLM], settings: dict[str, Any]) -> None:
    if "kv_cache_memory" in settings:
        settings["num_blocks"] = None
    with pytest.raises(InvalidConfigError, match=next(iter(settings))):
        make(**settings)


def test_params_one_a_prompt(make: Callable[..., LLM]) -> None:
    llm = make()
    each = [SamplingParams(temperature=0, max_tokens=n) for n in (1, 5)]
    outputs = llm.generate([[5, 6], [7]], each, use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 5]
    with pytest.raises(InvalidRequestError, match="params has 2 entries for 1 prompts"):
        llm.generate([[5, 6]], each, use_tqdm=False)
    with pytest.raises(InvalidRequestError, match=r"params must hold SamplingParams, got \{'max"):
        llm.generate([5, 6], {"max_tokens": 3}, use_tqdm=False)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="params must hold SamplingParams"):
        llm.generate([[5, 6]], [{"max_tokens": 3}], use_tqdm=False)  # type: ignore[list-item]


def test_triton_without_gpu_or_interpreter(make: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(BackendUnavailableError, match="TRITON_INTERPRET=1"):
        make(attention_backend="triton")


# ---------------------------------------------------------------- how requests end


def test_prompt_and_output_never_exceed_max_model_len(make: Callable[..., LLM]) -> None:
    llm = make(max_model_len=10)
    output = llm.generate([[5] * 7], SamplingParams(temperature=0, max_tokens=50), use_tqdm=False)[0]
    assert (len(output.outputs[0].token_ids), output.outputs[0].finish_reason) == (3, "length")
    with pytest.raises(InvalidRequestError, match="at most 9"):
        llm.generate([[5] * 10], GREEDY, use_tqdm=False)


@pytest.mark.parametrize("block_size", [1, 3, 4])
def test_a_pool_holds_one_token_more_than_its_slots(make: Callable[..., LLM], block_size: int) -> None:
    llm = make(block_size=block_size, num_blocks=5)
    long = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    output = llm.generate([[5, 6, 7]], long, use_tqdm=False)[0].outputs[0]
    assert (3 + len(output.token_ids), output.finish_reason) == (5 * block_size + 1, "capacity")
    exact = SamplingParams(temperature=0, max_tokens=5 * block_size - 2, ignore_eos=True)
    assert llm.generate([[5, 6, 7]], exact, use_tqdm=False)[0].outputs[0].finish_reason == "length"


def test_every_eos_id_of_the_generation_config_ends_a_text(make: Callable[..., LLM]) -> None:
    plain = tokens(make(), [5, 6, 7], SamplingParams(temperature=0, max_tokens=12, ignore_eos=True))
    llm = make()
    llm.engine._decoder.eos_token_ids = frozenset([1, plain[4]])
    first = plain.index(plain[4])
    output = llm.generate([[5, 6, 7]], GREEDY, use_tqdm=False)[0].outputs[0]
    assert (output.token_ids, output.finish_reason) == (plain[: first + 1], "stop")
    late = SamplingParams(temperature=0, max_tokens=12, min_tokens=first + 2)
    assert len(tokens(llm, [5, 6, 7], late)) > first + 1
    assert tokens(llm, [5, 6, 7], SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)) == plain


def test_eos_as_the_last_allowed_token_is_a_stop(make: Callable[..., LLM]) -> None:
    plain = tokens(make(), [5, 6, 7])
    first = plain.index(plain[3])
    llm = make()
    stop = SamplingParams(temperature=0, max_tokens=first + 1, stop_token_ids=[plain[3]])
    output = llm.generate([[5, 6, 7]], stop, use_tqdm=False)[0].outputs[0]
    assert (output.token_ids, output.finish_reason) == (plain[: first + 1], "stop")
    llm.engine._decoder.eos_token_ids = frozenset([1, plain[3]])
    last = SamplingParams(temperature=0, max_tokens=first + 1)
    output = llm.generate([[5, 6, 7]], last, use_tqdm=False)[0].outputs[0]
    assert (output.token_ids, output.finish_reason) == (plain[: first + 1], "stop")


def test_a_stop_string_ends_the_text_before_it(talker: LLM) -> None:
    long = SamplingParams(temperature=0, max_tokens=30)
    free = talker.generate("hello", long, use_tqdm=False)[0].outputs[0]
    stop = free.text[6:9]
    output = talker.generate(
        "hello", SamplingParams(temperature=0, max_tokens=30, stop=stop), use_tqdm=False
    )[0].outputs[0]
    assert output.text == free.text[: free.text.index(stop)]
    assert output.finish_reason == "stop"
    assert len(output.token_ids) < len(free.token_ids)


def test_streamed_text_only_ever_grows_and_never_shows_a_stop_string(talker: LLM) -> None:
    long = SamplingParams(temperature=0, max_tokens=30)
    free = talker.generate("hello", long, use_tqdm=False)[0].outputs[0]
    stop = free.text[6:9]
    talker.engine.add_request("r", "hello", SamplingParams(temperature=0, max_tokens=30, stop=stop))
    seen = [""]
    while talker.engine.has_unfinished_requests():
        seen += [output.outputs[0].text for output in talker.engine.step()]
    assert all(later.startswith(earlier) for earlier, later in pairwise(seen))
    assert seen[-1] == free.text[: free.text.index(stop)]


def test_text_that_is_cut_off_anywhere_is_all_there(talker: LLM) -> None:
    """Random tokens are random bytes: many an output ends inside a character."""
    cut_inside = 0
    for seed in range(4):
        for count in range(1, 7):
            params = SamplingParams(max_tokens=count, seed=seed, ignore_eos=True)
            output = talker.generate("hello", params, use_tqdm=False)[0].outputs[0]
            assert output.text == talker.tokenizer.decode(output.token_ids, skip_special_tokens=True)
            cut_inside += output.text.endswith("\ufffd")
    assert cut_inside > 3


def test_chat_uses_the_models_template(talker: LLM) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "안녕하세요"}]
    expected = talker.generate("[system]Be brief.[user]안녕하세요[assistant]", GREEDY, use_tqdm=False)[0]
    output = talker.chat(messages, GREEDY, use_tqdm=False)[0]
    assert output.prompt_token_ids == expected.prompt_token_ids
    assert output.outputs[0].token_ids == expected.outputs[0].token_ids
    assert len(talker.chat([messages, messages], GREEDY, use_tqdm=False)) == 2
    for bad in ([], [{"role": "user"}], ["hello"]):
        with pytest.raises(InvalidRequestError):
            talker.chat(bad, GREEDY, use_tqdm=False)  # type: ignore[arg-type]


def test_the_next_turn_finds_the_whole_conversation_in_the_cache(talker: LLM) -> None:
    messages = [{"role": "user", "content": "tell me about blocks, please"}]
    first = talker.chat(messages, GREEDY, use_tqdm=False)[0]
    # The K and V of the last sampled token were never computed.
    done = len(first.prompt_token_ids) + len(first.outputs[0].token_ids) - 1
    longer = [*first.prompt_token_ids, *first.outputs[0].token_ids, 40, 41, 42, 43, 44]
    second = talker.generate([longer], GREEDY, use_tqdm=False)[0]
    assert second.num_cached_tokens == done // 4 * 4


# ---------------------------------------------------------------- abort, deadlines, errors


def test_abort_in_any_state(make: Callable[..., LLM]) -> None:
    llm = make(max_num_seqs=2, max_num_batched_tokens=8)
    engine = llm.engine
    for name in ("running", "prefilling", "waiting", "kept"):
        engine.add_request(name, [5] * (20 if name == "prefilling" else 3), GREEDY)
    engine.step()
    engine.step()
    for name in ("waiting", "prefilling", "running", "running", "unknown"):
        engine.abort_request(name)
    engine.add_request("running", [9, 8], GREEDY)  # the id is free again at once
    ended: dict[str, list[Any]] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                ended.setdefault(output.request_id, []).append(output.outputs[0])
        engine.check()
    assert [len(ended[name]) for name in ("running", "prefilling", "waiting", "kept")] == [2, 1, 1, 1]
    assert [output.finish_reason for output in ended["running"]] == ["abort", "length"]
    assert len(ended["running"][1].token_ids) == 8
    engine.abort_request("kept")
    assert engine.step() == []


def test_an_abort_in_the_middle_of_the_step_that_ends_the_request_anyway(make: Callable[..., LLM]) -> None:
    """It comes too late to count, as does the old result for whoever uses the id again at once."""
    engine = make().engine
    one, many = SamplingParams(temperature=0, max_tokens=1), SamplingParams(temperature=0, max_tokens=5)

    def interfere(step: Any) -> None:
        engine.observers.clear()
        engine.abort_request("r")
        engine.add_request("r", [9, 8], many)

    engine.observers.append(interfere)
    engine.add_request("r", [5, 6, 7], one)
    (late,) = engine.step()
    assert (late.prompt_token_ids, late.outputs[0].finish_reason) == ([5, 6, 7], "length")
    with pytest.raises(InvalidRequestError, match="'r' is in use"):
        engine.add_request("r", [5], one)
    ended = []
    while engine.has_unfinished_requests():
        ended += [output for output in engine.step() if output.finished]
    assert [(o.prompt_token_ids, o.outputs[0].finish_reason) for o in ended] == [([9, 8], "length")]
    assert len(ended[0].outputs[0].token_ids) == 5


def test_an_abort_in_the_middle_of_a_step_takes_effect_in_the_next(make: Callable[..., LLM]) -> None:
    engine = make().engine
    engine.add_request("r", [5, 6, 7], GREEDY)
    engine.step()
    engine.observers.append(lambda step: engine.abort_request("r"))
    (output,) = engine.step()
    assert (output.finished, len(output.outputs[0].token_ids)) == (False, 2)
    (output,) = engine.step()
    assert (output.outputs[0].finish_reason, len(output.outputs[0].token_ids)) == ("abort", 2)
    assert not engine.has_unfinished_requests() and engine.blocks.allocator.num_in_use == 0


def test_abort_of_a_request_that_waits_to_be_computed_again(make: Callable[..., LLM]) -> None:
    engine = make(num_blocks=5, enable_prefix_caching=False).engine
    long = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    for name in "ab":
        engine.add_request(name, [5, 6, 7, 8, 9, 10, 11, 12], long)
    engine.step()
    engine.step()
    (preempted,) = engine.scheduler.waiting
    assert (preempted.request_id, preempted.num_preemptions) == ("b", 1)
    engine.abort_request("b")
    engine.add_request("b", [9, 8], long)
    ended = []
    while engine.has_unfinished_requests():
        ended += [output for output in engine.step() if output.finished]
        engine.check()
    assert [(o.request_id, o.outputs[0].finish_reason, len(o.outputs[0].token_ids)) for o in ended] == [
        ("b", "abort", 1),
        ("a", "length", 6),
        ("b", "length", 6),
    ]


def test_a_victim_is_not_started_again_in_the_step_that_stopped_it(make: Callable[..., LLM]) -> None:
    """Equal samples need fewer blocks when they start again: there would be room at once."""
    engine = make(num_blocks=11, enable_prefix_caching=False).engine
    victims = []

    def watch(step: Any) -> None:
        victims.extend(step.preempted)
        assert not {row.request for row in step.rows} & set(step.preempted)

    engine.observers.append(watch)
    engine.add_request("a", [5] * 6, SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))
    engine.add_request("b", [9, 8, 7, 6], SamplingParams(n=3, temperature=0, max_tokens=12, ignore_eos=True))
    ended = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            ended[output.request_id] = [len(sample.token_ids) for sample in output.outputs]
    assert [victim.request_id for victim in victims] == ["b"]
    assert ended == {"a": [20], "b": [12] * 3}


def test_two_hundred_requests_come_and_go_and_leave_nothing(
    make: Callable[..., LLM], prompts: list[list[int]], hf_greedy: Callable[..., list[list[int]]]
) -> None:
    """A fourth is aborted, in every state, and six ids are used over and over, each as soon as it is free."""
    space = 12 * 4 * 512  # bytes of 12 blocks: K and V, 2 layers, 2 KV heads of 8, float64
    llm = make(
        num_blocks=16, max_num_batched_tokens=24, max_num_seqs=6, preemption_mode="swap", swap_space=space
    )
    engine, choose = llm.engine, random.Random(3)
    short = prompts[:8]
    expected = hf_greedy("llama", short, 12)
    asked: dict[str, int] = {}  # which prompt an id stands for now
    num_added, aborted, num_checked, num_steps = 0, Counter[str](), 0, 0
    while num_added < 200 or engine.has_unfinished_requests():
        for name in "abcdef":
            if num_added < 200 and name not in asked:
                asked[name] = choose.randrange(len(short))
                params = SamplingParams(temperature=0, max_tokens=choose.randint(1, 12))
                engine.add_request(name, short[asked[name]], params)
                num_added += 1
        num_steps += 1
        assert num_steps < 2000, "it never ends"
        for output in engine.step():
            tokens, reason = output.outputs[0].token_ids, output.outputs[0].finish_reason
            if reason == "abort":
                continue
            assert output.prompt_token_ids == short[asked[output.request_id]], "a late result"
            assert tokens == expected[asked[output.request_id]][: len(tokens)]
            if output.finished:
                num_checked += 1
                del asked[output.request_id]
        states = {"running": engine.scheduler.running, "swapped": engine.scheduler.swapped}
        waiting = {"preempted": [], "waiting": []}
        for request in engine.scheduler.waiting:
            waiting["preempted" if request.num_preemptions else "waiting"].append(request)
        for state, requests in (states | waiting).items():
            for request in [*requests]:
                if choose.random() < 0.05 and request.request_id in asked:
                    engine.abort_request(request.request_id)
                    engine.abort_request(request.request_id)
                    del asked[request.request_id]
                    aborted[state] += 1
        engine.check()
    assert num_checked + aborted.total() == 200
    assert min(aborted[state] for state in ("running", "swapped", "waiting")) > 0, aborted
    assert engine.blocks.host_allocator is not None
    assert (engine.blocks.allocator.num_in_use, engine.blocks.host_allocator.num_in_use) == (0, 0)


def test_requests_from_another_thread(make: Callable[..., LLM]) -> None:
    llm = make()
    expected = tokens(make(), [5, 6, 7])
    threads = [
        threading.Thread(target=llm.engine.add_request, args=(f"t{i}", [5, 6, 7], GREEDY)) for i in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done = []
    while llm.engine.has_unfinished_requests():
        done += [output.outputs[0].token_ids for output in llm.engine.step() if output.finished]
    assert done == [expected] * 20


def test_a_request_id_in_use_is_refused(make: Callable[..., LLM]) -> None:
    engine = make().engine
    engine.add_request("a", [5], GREEDY)
    with pytest.raises(InvalidRequestError, match="'a' is in use"):
        engine.add_request("a", [6], GREEDY)
    engine.abort_request("a")
    engine.step()


def test_a_deadline_ends_a_request(make: Callable[..., LLM]) -> None:
    llm = make()
    hurried = SamplingParams(temperature=0, max_tokens=100, timeout=1e-9)
    outputs = llm.generate([[5, 6], [7]], [hurried, GREEDY], use_tqdm=False)
    assert [output.outputs[0].finish_reason for output in outputs] == ["abort", "length"]


def test_a_failing_forward_ends_its_requests_and_loses_no_block(
    make: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = make(max_num_seqs=1)
    engine = llm.engine
    engine.add_request("a", [5, 6, 7, 8, 9], GREEDY)
    engine.add_request("b", [5, 6, 7], GREEDY)
    engine.step()
    with monkeypatch.context() as patch:
        patch.setattr(engine.runner, "execute", lambda step: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.step()
    engine.check()
    done = {}
    while engine.has_unfinished_requests():
        done |= {output.request_id: output.outputs[0] for output in engine.step() if output.finished}
    assert {name: output.finish_reason for name, output in done.items()} == {"a": "error", "b": "length"}
    assert len(done["b"].token_ids) == 8


def test_an_interrupted_generate_leaves_nothing_behind(
    make: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = make(max_num_seqs=1)
    execute = llm.engine.runner.execute
    calls = []

    def interrupt(step: Any) -> Any:
        calls.append(step)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return execute(step)

    monkeypatch.setattr(llm.engine.runner, "execute", interrupt)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([[5, 6], [7]], GREEDY, use_tqdm=False)
    assert not llm.engine.has_unfinished_requests()
    assert llm.stats().num_used_blocks == 0


def test_logits_that_are_nan_end_their_own_request_only(
    make: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = make()
    expected = tokens(make(), [7])
    execute = llm.engine.runner.execute

    def poison(step: Any) -> torch.Tensor:
        logits = execute(step).clone()
        for i, row in enumerate(row for row in step.rows if row.is_last_chunk):
            if row.request.prompt_token_ids == [5, 6]:
                logits[i] = float("nan")
        return logits

    monkeypatch.setattr(llm.engine.runner, "execute", poison)
    outputs = llm.generate([[5, 6], [7]], GREEDY, use_tqdm=False)
    assert [output.outputs[0].finish_reason for output in outputs] == ["error", "length"]
    assert outputs[1].outputs[0].token_ids == expected


# ---------------------------------------------------------------- sampling


def test_seeded_tokens_depend_on_nothing_the_scheduler_does(make: Callable[..., LLM]) -> None:
    seeded = SamplingParams(temperature=1.5, max_tokens=12, seed=11, ignore_eos=True)
    other = SamplingParams(temperature=1.5, max_tokens=30, ignore_eos=True)
    prompt = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14]
    alone = tokens(make(), prompt, seeded)
    assert tokens(make(max_num_batched_tokens=4), prompt, seeded) == alone
    batched = make().generate([[44, 45], prompt, [46]], [other, seeded, other], use_tqdm=False)
    assert batched[1].outputs[0].token_ids == alone
    small = make(num_blocks=10)
    crowded = small.generate([[44] * 9, [46] * 8, prompt], [other, other, seeded], use_tqdm=False)
    assert small.stats().num_preemptions > 0
    assert crowded[2].outputs[0].token_ids == alone
    assert tokens(make(), prompt, SamplingParams(temperature=1.5, max_tokens=12, seed=12)) != alone


def test_a_seeded_request_preempted_between_its_chunks_finds_its_blocks_and_draws_the_same(
    make: Callable[..., LLM],
) -> None:
    seeded = SamplingParams(temperature=1.5, max_tokens=9, seed=11, ignore_eos=True)
    prompt = [50, 51, 52, 53, 54, 55, 56, 57, 58, 59]
    alone = tokens(make(), prompt, seeded)
    llm = make(num_blocks=7, max_num_batched_tokens=4, max_num_seqs=4)
    rows: list[tuple[int, int]] = []
    preempted_at: list[int] = []

    def watch(step: Any) -> None:
        preempted_at.extend(len(rows) for request in step.preempted if request.prompt_token_ids == prompt)
        rows.extend((row.start, row.stop) for row in step.rows if row.request.prompt_token_ids == prompt)

    llm.engine.observers.append(watch)
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (6, 4)]
    outputs = llm.generate([[5, 6, 7, 8], [9, 8, 7, 6], prompt], [*params, seeded], use_tqdm=False)
    assert preempted_at == [3]
    assert rows == [(0, 2), (2, 4), (4, 6), (4, 8), (8, 10), *((i, i + 1) for i in range(10, 18))]
    assert outputs[2].outputs[0].token_ids == alone


def test_a_draw_is_that_of_the_models_distribution_at_the_number_of_its_seed_and_position(
    make: Callable[..., LLM], tiny_model: Callable[[str], Path]
) -> None:
    """So no two tokens of a request are drawn with one number, and none skips a number."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model("llama"), dtype=torch.float64).eval()
    params = SamplingParams(n=2, temperature=2.0, max_tokens=15, seed=3, ignore_eos=True)
    (output,) = make().generate([[5, 6, 7]], params, use_tqdm=False)
    for sample in output.outputs:
        with torch.no_grad():
            logits = model(torch.tensor([[5, 6, 7, *sample.token_ids]])).logits[0, 2:-1]
        cumulative = (logits / 2.0).softmax(-1).cumsum(-1)
        numbers = [uniform(3 + sample.index, position) for position in range(3, 18)]
        expected = torch.searchsorted(cumulative, torch.tensor(numbers).double().unsqueeze(1), right=True)
        assert sample.token_ids == expected.flatten().tolist()
    assert output.outputs[0].token_ids != output.outputs[1].token_ids


def test_logits_are_equal_to_the_bit_whatever_neighbours_of_the_same_shape_say(
    make: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = [5, 6, 7, 8, 9, 10]
    long = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)

    def logits(neighbours: list[list[int]], **params: Any) -> list[torch.Tensor]:
        llm = make(enable_prefix_caching=False)
        execute, seen = llm.engine.runner.execute, []

        def record(step: Any) -> torch.Tensor:
            result = execute(step)
            place = [row.request.prompt_token_ids for row in step.rows].index(prompt)
            seen.append(result[place].clone())
            return result

        monkeypatch.setattr(llm.engine.runner, "execute", record)
        other = SamplingParams(max_tokens=10, ignore_eos=True, **params)
        llm.generate([neighbours[0], prompt, neighbours[1]], [other, long, other], use_tqdm=False)
        return seen

    first = logits([[20] * 9, [21] * 3], temperature=0)
    second = logits([[90, 91, 92] * 3, [80, 81, 82]], seed=5, temperature=3.0)
    assert len(first) == 10
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_unseeded_requests_differ_from_each_other_and_follow_the_engines_seed(
    make: Callable[..., LLM],
) -> None:
    params = SamplingParams(temperature=1.5, max_tokens=12, ignore_eos=True)

    def run(seed: int) -> list[list[int]]:
        outputs = make(seed=seed).generate([[5, 6]] * 3, params, use_tqdm=False)
        return [output.outputs[0].token_ids for output in outputs]

    first = run(3)
    assert len(set(map(tuple, first))) == 3
    assert run(3) == first
    assert run(4) != first


def test_logprobs_are_the_models_own(make: Callable[..., LLM], tiny_model: Callable[[str], Path]) -> None:
    params = SamplingParams(temperature=0, max_tokens=5, logprobs=3)
    output = make().generate([[5, 6, 7]], params, use_tqdm=False)[0].outputs[0]
    model = AutoModelForCausalLM.from_pretrained(tiny_model("llama"), dtype=torch.float64).eval()
    with torch.no_grad():
        logits = model(torch.tensor([[5, 6, 7, *output.token_ids]])).logits[0]
    expected = logits.log_softmax(-1)[2:-1]
    assert output.logprobs is not None and output.cumulative_logprob is not None
    for chosen, found, row in zip(output.token_ids, output.logprobs, expected, strict=True):
        top = row.topk(3)
        assert list(found) == top.indices.tolist() and chosen == top.indices[0]
        assert list(found.values()) == pytest.approx(top.values.tolist(), abs=1e-6)
    total = sum(expected[i, token].item() for i, token in enumerate(output.token_ids))
    assert output.cumulative_logprob == pytest.approx(total, abs=1e-6)


# ---------------------------------------------------------------- the cache


def test_salts_keep_prompts_apart(make: Callable[..., LLM]) -> None:
    llm = make()
    hits = []
    for salt in (None, "x", "y", "x", None):
        params = SamplingParams(temperature=0, max_tokens=2, cache_salt=salt)
        hits.append(llm.generate([[5] * 13], params, use_tqdm=False)[0].num_cached_tokens)
    assert hits == [0, 0, 0, 12, 12]


def test_a_hash_that_says_nothing_serves_nobody_anothers_blocks(
    make: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    """[A B], then [C B], then the same under other salts: every digest is equal, and the tokens decide."""
    a, b, c = [5, 6, 7, 8], [9, 10, 11, 12], [25, 26, 27, 28]
    cold = [tokens(make(), [*first, *b, 13]) for first in (a, c)]
    llm = make()
    monkeypatch.setattr(
        llm.engine.blocks, "new_chain", lambda ids, salt: PrefixChain(ids, 4, salt, lambda *_: 0)
    )
    for first, salt, cached in [
        (a, None, 0),
        (c, None, 0),
        (a, "x", 0),
        (a, "y", 0),
        (a, None, 4),  # the first block was there first, and keeps the digest
        (c, None, 0),
    ]:
        params = SamplingParams(temperature=0, max_tokens=8, cache_salt=salt)
        output = llm.generate([[*first, *b, 13]], params, use_tqdm=False)[0]
        assert output.num_cached_tokens == cached
        assert output.outputs[0].token_ids == cold[first is c]


def test_a_whole_prompt_hit_still_computes_one_token(make: Callable[..., LLM]) -> None:
    for length, cached in ((12, 8), (13, 12), (14, 12), (17, 16)):
        llm = make()
        prompt = [(7 * i) % 100 + 3 for i in range(length)]
        first = llm.generate([prompt], GREEDY, use_tqdm=False)[0]
        again = llm.generate([prompt], GREEDY, use_tqdm=False)[0]
        assert (first.num_cached_tokens, again.num_cached_tokens) == (0, cached)
        assert again.outputs[0].token_ids == first.outputs[0].token_ids


def test_a_recycled_block_is_no_longer_found(make: Callable[..., LLM]) -> None:
    """Two blocks: P fills them, then Q does; P must be computed anew."""
    llm = make(num_blocks=2)
    one = SamplingParams(temperature=0, max_tokens=1)
    p, q = [5, 6, 7, 8, 9, 10, 11, 12], [25, 26, 27, 28, 29, 30, 31, 32]
    runs = [llm.generate([prompt], one, use_tqdm=False)[0] for prompt in (p, q, p)]
    assert [run.num_cached_tokens for run in runs] == [0, 0, 0]
    assert runs[2].outputs[0].token_ids == runs[0].outputs[0].token_ids


def test_the_tail_of_a_prompt_is_evicted_before_its_head(make: Callable[..., LLM]) -> None:
    """Three blocks: P fills them, Q needs one of them, and the first two of P are still there."""
    llm = make(num_blocks=3)
    one = SamplingParams(temperature=0, max_tokens=1)
    p, q = list(range(5, 17)), [25, 26, 27]
    runs = [llm.generate([prompt], one, use_tqdm=False)[0] for prompt in (p, q, p)]
    assert [run.num_cached_tokens for run in runs] == [0, 0, 8]
    assert runs[2].outputs[0].token_ids == runs[0].outputs[0].token_ids


@pytest.mark.parametrize(("aborted", "survivor"), ["ab", "ba"])
def test_twins_in_one_step_and_one_aborted(make: Callable[..., LLM], aborted: str, survivor: str) -> None:
    expected = tokens(make(), [5, 6, 7, 8, 9, 10, 11, 12, 13])
    llm = make(num_blocks=9)
    engine = llm.engine
    for name in ("a", "b"):
        engine.add_request(name, [5, 6, 7, 8, 9, 10, 11, 12, 13], GREEDY)
    engine.step()
    engine.step()
    engine.abort_request(aborted)
    engine.add_request("filler", [50] * 15, GREEDY)
    done = {}
    while engine.has_unfinished_requests():
        done |= {output.request_id: output.outputs[0].token_ids for output in engine.step()}
        engine.check()
    assert done[survivor] == expected
    assert len(done[aborted]) == 2 and len(done["filler"]) == 8
    assert llm.stats().peak_used_blocks == 9


def test_stats_add_up(make: Callable[..., LLM]) -> None:
    llm = make()
    llm.generate([[5] * 10, [6] * 3], GREEDY, use_tqdm=False)
    stats = llm.stats()
    assert stats.num_free_blocks + stats.num_used_blocks + stats.num_cached_blocks == stats.num_blocks == 40
    assert (stats.num_used_blocks, stats.num_running, stats.num_waiting) == (0, 0, 0)
    assert (stats.num_prompt_tokens, stats.num_generated_tokens, stats.num_steps) == (13, 16, 8)
    assert stats.bytes_per_block == 2 * 2 * 2 * 8 * 8 * 4  # K and V, layers, heads, head_dim, float64, tokens
    # Tokens with a slot: 10..17 and 3..10 over the 8 steps. Blocks: 3,3,3,4,4,4,4,5 and 1,1,2,2,2,2,3,3.
    reserved, filled = (30 + 16) * 4, sum(range(10, 18)) + sum(range(3, 11))
    assert stats.waste == pytest.approx((reserved - filled) / reserved)
    assert stats.waste_if_reserved == pytest.approx(1 - filled / (16 * 256))


def test_the_reader_may_bring_own_classes(make: Callable[..., LLM]) -> None:
    from minipaged.engine.parts import Parts
    from minipaged.reference.allocator import BlockAllocator

    class HighestFirst(BlockAllocator):
        def __init__(self, num_blocks: int) -> None:
            super().__init__(num_blocks)
            self._free.reverse()

    llm = make(parts=Parts(allocator_class=HighestFirst))
    seen = []
    llm.engine.observers.append(lambda step: seen.append(step.rows[0].request.sequences[0].table.blocks[0]))
    assert tokens(llm, [5, 6, 7]) == tokens(make(), [5, 6, 7])
    assert seen[0] == 39


def test_every_error_of_ours_has_one_base() -> None:
    for error in (InvalidRequestError, InvalidConfigError, BackendUnavailableError):
        assert issubclass(error, MinipagedError)


def test_serving_compiles_nothing_that_was_not_compiled_at_load(tiny_model: Callable[[str], Path]) -> None:
    """In a process of its own, for one thread and for several: time to first token holds no compilation."""
    code = f"""
import torch
from minipaged import LLM, SamplingParams
from minipaged.kernels import _cpu_arguments, attention_cpu
calls = attention_cpu._attend_alone, attention_cpu._attend_in_threads, _cpu_arguments.find_fault
torch.set_num_threads(2)
llm = LLM({str(tiny_model("llama"))!r}, dtype="float64", device="cpu", num_blocks=400, max_num_seqs=64)
loaded = [len(call.signatures) for call in calls]
params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
llm.generate([[5, 6, 7], *[[5] * 200] * 20], params, use_tqdm=False)
print(loaded, [len(call.signatures) for call in calls])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[1, 1, 1] [1, 1, 1]"
