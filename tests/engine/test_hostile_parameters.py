"""A parameter of one request is refused, harmless, or ends that request alone, never another."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minipaged import LLM, BeamSearchParams, SamplingParams
from minipaged.engine import decoding
from minipaged.engine.beam_scores import BeamSearch
from minipaged.engine.engine import LLMEngine
from minipaged.engine.sampler import SamplingRow, sample
from minipaged.errors import InvalidRequestError, MinipagedError
from minipaged.models import loading

HUGE = 10**5000  # Python writes out no integer of so many digits
LARGE = [2**31, 2**62, 2**63 - 1, 2**63, 2**64, 2**70, 10**400, HUGE]
NUMBERS = [0.0, 5e-324, 1e-320, 1e-308, 1e-30, 1.0, 1.7e308, float("nan"), *LARGE, -HUGE, -(2**63), -1]
number = st.sampled_from([*NUMBERS, *map(float, range(-3, 4))])
sampling = st.fixed_dictionaries(
    {},
    optional={
        "n": st.sampled_from([1, 2, 3, 4, *LARGE]),
        "temperature": number,
        "top_p": number,
        "top_k": number | st.sampled_from([1, 2, 127, 128, 129]),
        "min_p": number,
        "repetition_penalty": number,
        "presence_penalty": number,
        "frequency_penalty": number,
        "max_tokens": st.sampled_from([1, 5, 200, *LARGE]),
        "min_tokens": st.sampled_from([0, 1, 5, *LARGE]),
        "stop": st.sampled_from(["a", "\0", "\ud800", "x" * 5000, "ab" * 2000, ["a"] * 16]),
        "stop_token_ids": st.lists(st.sampled_from([0, 5, 127, 128, 10**6, *LARGE]), max_size=3)
        | st.just(list(range(128))),
        "ignore_eos": st.booleans(),
        "seed": st.sampled_from([-(2**63), 2**63, 2**64 - 1, *LARGE]),
        "logprobs": st.sampled_from([0, 1, 20, *LARGE]),
        "cache_salt": st.sampled_from(["\ud800", "\0", "x" * 10**6]),
        "timeout": number,
    },
)
beams = st.fixed_dictionaries(
    {},
    optional={
        "beam_width": st.sampled_from([1, 3, 64, 65, *LARGE]),
        "max_tokens": st.sampled_from([1, 5, 200, *LARGE]),
        "length_penalty": number | st.sampled_from([-10, 10]),
        "early_stopping": st.sampled_from([True, False, "never"]),
        "ignore_eos": st.booleans(),
    },
)
PLAIN: dict[str, tuple[list[int], SamplingParams]] = {
    "greedy": ([5, 6, 7, 8, 9], SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)),
    "drawn": ([9, 8, 7], SamplingParams(seed=3, top_p=0.9, max_tokens=4, ignore_eos=True)),
}


@pytest.fixture
def engine(shared: LLMEngine) -> Iterator[LLMEngine]:
    """Free of what a test that failed has left behind."""
    yield shared
    shared.forget(["greedy", "drawn", "hostile", "r"])


@pytest.fixture(scope="module")
def shared(tiny_chat_model: Path) -> LLMEngine:
    options: dict[str, Any] = {"dtype": "float64", "device": "cpu", "block_size": 4, "num_blocks": 200}
    return LLM(str(tiny_chat_model), max_model_len=60, check_invariants=True, **options).engine


def serve(engine: LLMEngine) -> dict[str, Any]:
    """The last output of each request, once all have ended."""
    last: dict[str, Any] = {}
    for _ in range(200):
        if not engine.has_unfinished_requests():
            return last
        last |= {output.request_id: output for output in engine.step()}
    raise AssertionError("it never ends")


def add_plain(engine: LLMEngine) -> None:
    for name, (prompt, params) in PLAIN.items():
        engine.add_request(name, prompt, params)


@pytest.fixture(scope="module")
def alone(shared: LLMEngine) -> dict[str, list[int]]:
    """The tokens of each plain request when it is served alone."""
    tokens = {}
    for name, (prompt, params) in PLAIN.items():
        shared.add_request(name, prompt, params)
        tokens[name] = serve(shared)[name].outputs[0].token_ids
    return tokens


def expect_plain(outputs: dict[str, Any], alone: dict[str, list[int]]) -> None:
    for name, tokens in alone.items():
        assert (outputs[name].outputs[0].token_ids, outputs[name].error) == (tokens, None)


@settings(
    max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
@given(kind=st.sampled_from([SamplingParams, BeamSearchParams]), data=st.data())
def test_two_plain_requests_beside_a_hostile_one(
    engine: LLMEngine, alone: dict[str, list[int]], kind: Any, data: st.DataObject
) -> None:
    arguments = data.draw(sampling if kind is SamplingParams else beams)
    add_plain(engine)
    try:
        engine.add_request("hostile", [5, 6, 7], kind(**arguments))
        refused = False
    except InvalidRequestError as error:
        assert "\n" not in str(error) and len(str(error)) < 300
        refused = True
    outputs = serve(engine)
    expect_plain(outputs, alone)
    assert ("hostile" in outputs) != refused
    for output in outputs["hostile"].outputs if not refused else ():
        assert output.finish_reason in ("stop", "length", "abort", "error", "capacity")
    assert engine.blocks.allocator.num_in_use == 0


@pytest.mark.parametrize("field", dataclasses.fields(SamplingParams), ids=lambda field: field.name)
def test_each_parameter_alone_beside_plain_requests(
    engine: LLMEngine, alone: dict[str, list[int]], field: Any
) -> None:
    for value in [*NUMBERS, [2**63], [HUGE], [128], "\ud800"]:
        add_plain(engine)
        try:
            params = {"max_tokens": 3, "min_tokens": 1} | {field.name: value}
            engine.add_request("hostile", [5, 6, 7], SamplingParams(**params))
        except MinipagedError:
            pass
        expect_plain(serve(engine), alone)


@pytest.mark.parametrize("token_id", [259, 2**63, HUGE], ids=["next", "64 bits", "huge"])
def test_a_stop_token_beyond_the_vocabulary_is_refused(engine: LLMEngine, token_id: int) -> None:
    params = SamplingParams(stop_token_ids=[5, token_id])
    with pytest.raises(InvalidRequestError, match=r"^stop_token_ids must hold token ids from 0 to 258, got "):
        engine.add_request("r", [5], params)
    assert not engine.has_unfinished_requests()


# ------------------------------------------------------------------ extreme values that have a meaning


def ids(logits: list[float], **params: Any) -> int:
    row = SamplingRow(SamplingParams(**params), 0, 0, [0, 1], [2], (3, 2**63, -1))
    (token,) = sample(torch.tensor([logits], dtype=torch.float64), [row])
    return token.token_id


def test_a_top_k_beyond_the_vocabulary_keeps_all() -> None:
    for top_k in (4, 10**19, 2**70, HUGE):
        rows = [
            SamplingRow(SamplingParams(top_k=k), seed, 0, [], []) for seed in range(20) for k in (top_k, 1, 0)
        ]
        tokens = [token.token_id for token in sample(torch.zeros(60, 4), rows)]
        assert tokens[0::3] == tokens[2::3] and tokens[1::3] == [0] * 20


def test_an_extreme_repetition_penalty_makes_tokens_certain_or_impossible() -> None:
    assert ids([1.0, 2.0, 0.5, 1.5], temperature=0, repetition_penalty=1.7e308) == 3
    assert ids([1.0, 2.0, 0.5, 1.5], temperature=0, repetition_penalty=5e-324) == 0  # all overflow: the first
    assert ids([-1.0, -2.0, -0.5, -9.0], temperature=0, repetition_penalty=1.7e308) == 3
    assert ids([-1.0, -2.0, -3.0], temperature=1, repetition_penalty=1.7e308) in (0, 1, 2)
    assert ids([-torch.inf, -2.0, -3.0, -9.0], temperature=0, repetition_penalty=1e-300) == 1


def test_stop_tokens_of_a_configuration_beyond_the_vocabulary_mask_nothing() -> None:
    assert ids([1.0, 2.0, 0.5, 9.0], temperature=0, min_tokens=5) == 1


# ------------------------------------------------------------------ whatever raises for one row


class BoomError(Exception):
    """What the tests throw."""


def test_a_row_that_cannot_be_sampled_ends_alone(
    engine: LLMEngine, alone: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse_seed_13(logits: torch.Tensor, rows: list[SamplingRow]) -> Any:
        if any(row.seed == 13 for row in rows):
            raise BoomError("this row")
        return sample(logits, rows)

    monkeypatch.setattr(decoding, "sample", refuse_seed_13)
    add_plain(engine)
    engine.add_request("hostile", [5, 6, 7], SamplingParams(n=3, seed=12, max_tokens=3, ignore_eos=True))
    outputs = serve(engine)
    expect_plain(outputs, alone)
    assert [one.finish_reason for one in outputs["hostile"].outputs] == ["length", "error", "length"]
    assert outputs["hostile"].error == "BoomError: this row"


def test_a_search_that_raises_ends_alone(
    engine: LLMEngine, alone: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise BoomError("this search")

    monkeypatch.setattr(BeamSearch, "advance", fail)
    add_plain(engine)
    engine.add_request("hostile", [5, 6, 7], BeamSearchParams(beam_width=2, max_tokens=3))
    outputs = serve(engine)
    expect_plain(outputs, alone)
    assert outputs["hostile"].error == "BoomError: this search"


@pytest.mark.parametrize("method", ["add", "flush"])
def test_a_text_that_cannot_be_decoded_ends_alone(
    method: str, engine: LLMEngine, alone: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    add_plain(engine)
    engine.add_request("hostile", [5, 6, 7], SamplingParams(temperature=0, max_tokens=3, ignore_eos=True))
    engine.empty_inbox()
    (request,) = (each for each in engine.scheduler.requests() if each.request_id == "hostile")
    detokenizer = request.sequences[0].detokenizer

    def fail(*_: int) -> str:
        raise BoomError("this text")

    monkeypatch.setattr(detokenizer, method, fail)
    outputs = serve(engine)
    expect_plain(outputs, alone)
    assert outputs["hostile"].error == "BoomError: this text"
    assert outputs["hostile"].outputs[0].finish_reason == "error"


# ------------------------------------------------------------------ tokens without an embedding


def test_a_prompt_with_a_token_that_has_no_embedding_is_refused(
    tiny_chat_model: Path, tmp_path: Path
) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_chat_model)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|extra|>"]})
    tokenizer.add_tokens([tokenizers.AddedToken("plain extra")])
    tokenizer.save_pretrained(tmp_path)
    for name in ("config.json", "model.safetensors", "generation_config.json"):
        (tmp_path / name).write_bytes((tiny_chat_model / name).read_bytes())
    llm = LLM(str(tmp_path), dtype="float64", device="cpu", num_blocks=20)
    params = SamplingParams(temperature=0, max_tokens=3)
    expected = llm.generate("hello", params, use_tqdm=False)[0].outputs[0].token_ids
    message = r"^prompt must hold token ids from 0 to 258, got {}, the token '{}', which has no embedding$"
    extra, plain = message.format(259, r"<\|extra\|>"), message.format(260, "plain extra")
    calls: list[tuple[str, Callable[[], Any]]] = [
        (extra, lambda: llm.generate("a<|extra|>b", params)),
        (extra, lambda: llm.generate([[5, 259]], params)),
        (extra, lambda: llm.chat([{"role": "user", "content": "a<|extra|>b"}], params)),
        (plain, lambda: llm.generate("a plain extra", params)),
        (plain, lambda: llm.beam_search("a plain extra", BeamSearchParams())),
        (r"got 261$", lambda: llm.generate([[261]], params)),
    ]
    llm.engine.add_request("other", "hello", params)
    for expected_message, call in calls:
        with pytest.raises(InvalidRequestError, match=expected_message):
            call()
    assert serve(llm.engine)["other"].outputs[0].token_ids == expected


@pytest.mark.parametrize("num_embeddings", [130, 120])
def test_embeddings_and_outputs_may_differ_in_number(
    num_embeddings: int, tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """More embeddings, as Llama 3.2 Vision has; or fewer: then some tokens could never be continued."""

    def resize(model: Any) -> Any:
        old = model.model.embed_tokens.weight
        new = torch.cat([old, torch.ones(2, old.shape[1], dtype=old.dtype)])[:num_embeddings]
        model.model.embed_tokens = torch.nn.Embedding.from_pretrained(new)
        return model

    folder, num_outputs = str(tiny_model("llama")), min(num_embeddings, 128)
    load = loading._load_weights
    monkeypatch.setattr(loading, "_load_weights", lambda *given: resize(load(*given)))
    llm = LLM(folder, dtype="float64", device="cpu", num_blocks=40)
    model = resize(transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64))
    for last in range(60, 128, 4) if num_embeddings == 120 else (129, 128, 5):
        prompt = torch.tensor([[5, 6, min(last, num_embeddings - 1)]])
        options = {"suppress_tokens": list(range(num_outputs, 128))} if num_outputs < 128 else {}
        expected = model.generate(prompt, max_new_tokens=8, do_sample=False, eos_token_id=None, **options)
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
        (answer,) = llm.generate(prompt.tolist(), params, use_tqdm=False)
        assert answer.outputs[0].token_ids == expected[0, 3:].tolist()
    with pytest.raises(InvalidRequestError, match=rf"0 to {num_embeddings - 1}, got {num_embeddings}$"):
        llm.generate([[num_embeddings]])
    with pytest.raises(InvalidRequestError, match=rf"^stop_token_ids .* 0 to {num_outputs - 1}, got 128$"):
        llm.generate([[5]], SamplingParams(stop_token_ids=[128]))


def test_a_prompt_of_numbers_that_are_no_token_ids_is_refused(engine: LLMEngine) -> None:
    for prompt in ([HUGE], [5, -HUGE], [2**63], [True], [5, 0.5], HUGE):
        with pytest.raises(InvalidRequestError, match=r"^prompt must .*, got ") as error:
            engine.add_request("r", prompt, SamplingParams())  # type: ignore[arg-type]
        assert len(str(error.value)) < 200
    assert not engine.has_unfinished_requests()


def test_a_refused_request_changes_no_seed(tiny_model: Callable[[str], Path]) -> None:
    """The model has no tokenizer, so a stop string is refused; the next draw is as if it never came."""
    drawn = []
    for stop in (None, "x"):
        llm = LLM(str(tiny_model("llama")), device="cpu", num_blocks=8)
        if stop:
            with pytest.raises(InvalidRequestError, match="tokenizer"):
                llm.generate([5, 6], SamplingParams(stop=stop), use_tqdm=False)
        drawn.append(
            llm.generate([5, 6], SamplingParams(max_tokens=8), use_tqdm=False)[0].outputs[0].token_ids
        )
    assert drawn[0] == drawn[1]


def test_a_text_that_no_context_could_hold_is_refused_before_it_is_tokenized(tiny_chat_model: Path) -> None:
    """Each token of this vocabulary stands for at most 5 bytes ("<pad>"), and the model takes 256 tokens."""
    llm = LLM(str(tiny_chat_model), device="cpu", num_blocks=20)
    backend = llm.tokenizer.backend_tokenizer
    for text in ("x" * 4_000_000, "é" * 1100):
        message = f"prompt has {len(text.encode())} bytes of text, more than 256 tokens"
        with pytest.raises(InvalidRequestError, match=message):
            llm.generate(text, use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="bytes of text, more than 256 tokens"):
        llm.chat([{"role": "user", "content": "x" * 3000}], use_tqdm=False)
    assert len(backend.encode("x" * 200).ids) == 200  # what is short enough is tokenized, and counted
    with pytest.raises(InvalidRequestError, match="prompt has 1200 tokens, at most 255"):
        llm.generate("x" * 1200, use_tqdm=False)
