"""The engine as its callers see it: what it refuses, how requests end, and that nothing is ever lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from minipaged import LLM, SamplingParams
from minipaged.errors import (
    BackendUnavailableError,
    InvalidConfigError,
    InvalidRequestError,
    MinipagedError,
)

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


def test_twins_in_one_step_and_one_aborted(make: Callable[..., LLM]) -> None:
    expected = tokens(make(), [5, 6, 7, 8, 9, 10, 11, 12, 13])
    engine = make(num_blocks=9).engine
    for name in ("a", "b"):
        engine.add_request(name, [5, 6, 7, 8, 9, 10, 11, 12, 13], GREEDY)
    engine.step()
    engine.step()
    engine.abort_request("a")
    engine.add_request("filler", [50] * 15, GREEDY)
    done = {}
    while engine.has_unfinished_requests():
        done |= {output.request_id: output.outputs[0].token_ids for output in engine.step()}
        engine.check()
    assert done["b"] == expected


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
    from minipaged.reference.allocator import BlockAllocator

    class HighestFirst(BlockAllocator):
        def __init__(self, num_blocks: int) -> None:
            super().__init__(num_blocks)
            self._free.reverse()

    llm = make(allocator_class=HighestFirst)
    seen = []
    llm.engine.observers.append(lambda step: seen.append(step.rows[0].request.sequences[0].table.blocks[0]))
    assert tokens(llm, [5, 6, 7]) == tokens(make(), [5, 6, 7])
    assert seen[0] == 39


def test_a_profiling_step_runs_the_largest_prompt(make: Callable[..., LLM]) -> None:
    llm = make(max_num_batched_tokens=300)
    assert llm.engine.runner.profile(300, 5).shape == (5, 128)


def test_every_error_of_ours_has_one_base() -> None:
    for error in (InvalidRequestError, InvalidConfigError, BackendUnavailableError):
        assert issubclass(error, MinipagedError)
