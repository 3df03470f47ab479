"""Whatever raises, wherever: no block is lost, nothing hangs, the others get the same tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from minipaged import LLM, BeamSearchParams, SamplingParams
from minipaged.config import EngineConfig
from minipaged.engine import decoding, model_runner
from minipaged.engine.engine import LLMEngine
from minipaged.engine.model_hook import ATTENTION_NAME
from minipaged.errors import EngineDeadError, InvalidConfigError, InvalidRequestError
from minipaged.models.loading import LoadedModel, load_model
from minipaged.reference.allocator import BlockAllocator

PLACES = {
    "allocate": (BlockAllocator, "allocate"),
    "share": (BlockAllocator, "share"),
    "copy": (model_runner, "copy_blocks"),
    "swap": (model_runner, "swap_blocks"),
    "sample": (decoding, "sample"),
    "forward": (model_runner.ModelRunner, "_forward"),
}
REQUESTS: dict[str, tuple[list[int], SamplingParams | BeamSearchParams]] = {
    "greedy": ([5, 6, 7, 8, 9], SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)),
    "samples": ([5, 6, 7, 8, 9, 10], SamplingParams(n=3, seed=1, max_tokens=7, ignore_eos=True)),
    "beams": ([9, 8, 7], BeamSearchParams(beam_width=2, max_tokens=8, ignore_eos=True)),
    "late": ([*range(5, 22)], SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)),
}


class BoomError(Exception):
    """What the tests throw."""


class Fuse:
    """Counts the calls of one function and blows at the one asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, place: str, at: int | None = None) -> None:
        owner, name = PLACES[place]
        self.count = 0
        function = getattr(owner, name)

        def call(*args: Any, **options: Any) -> Any:
            self.count += 1
            if self.count == at:
                raise BoomError(f"{place}, call {at}")
            return function(*args, **options)

        monkeypatch.setattr(owner, name, call)


@cache
def load(folder: Path) -> LoadedModel:
    """Each k-th call needs an engine of its own, but not a model."""
    return load_model(str(folder), dtype="float64", attn_implementation=ATTENTION_NAME)


def start(folder: Path) -> LLMEngine:
    config = EngineConfig(
        block_size=4,
        num_blocks=13,
        preemption_mode="swap",
        swap_space=12 * 4 * 512,
        max_num_batched_tokens=16,
        check_invariants=True,
    )
    return LLMEngine(load(folder), config)


def serve(engine: LLMEngine) -> tuple[dict[str, Any], int]:
    """Each request's last output, and how often a step raised. Bounded, so that a hang fails."""
    for name, (prompt, params) in REQUESTS.items():
        engine.add_request(name, prompt, params)
    last: dict[str, Any] = {}
    raised = 0
    for _ in range(300):
        if not engine.has_unfinished_requests():
            return last, raised
        try:
            outputs = engine.step()
        except BoomError:
            raised += 1
            continue
        last |= {output.request_id: output for output in outputs}
        engine.check()
    raise AssertionError("it never ends")


def tokens(output: Any) -> list[list[int]]:
    return [one.token_ids for one in output.outputs]


@pytest.mark.parametrize("place", PLACES)
def test_the_kth_call_raises_for_every_k(
    place: str, tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(tiny_model("llama"))
    with monkeypatch.context() as patch:
        fuse = Fuse(patch, place)
        expected, _ = serve(engine)
    assert fuse.count > 0, "this scenario proves nothing"
    for at in range(1, fuse.count + 1):
        fresh = start(tiny_model("llama"))
        with monkeypatch.context() as patch:
            Fuse(patch, place, at)
            last, raised = serve(fresh)
        assert last.keys() == REQUESTS.keys() and all(output.finished for output in last.values())
        ended = [name for name in last if last[name].outputs[0].finish_reason == "error"]
        if place == "sample":  # tried again row by row: only a row that fails alone as well is at fault
            assert raised == 0 and len(ended) <= 1
        else:
            assert raised == 1 and ended
        for name, output in last.items():
            if name in ended:
                assert f"{place}, call {at}" in output.error
            else:
                assert tokens(output) == tokens(expected[name]) and output.error is None
        allocator, host = fresh.blocks.allocator, fresh.blocks.host_allocator
        assert allocator.num_in_use == 0 and host is not None and host.num_in_use == 0


def test_an_observer_that_raises_ends_the_requests_of_its_step(tiny_model: Callable[[str], Path]) -> None:
    engine = start(tiny_model("llama"))

    def observe(step: Any) -> None:
        engine.observers.clear()
        raise BoomError

    engine.observers.append(observe)
    last, raised = serve(engine)  # all of them start in the first step
    assert (raised, {output.outputs[0].finish_reason for output in last.values()}) == (1, {"error"})
    last, raised = serve(engine)
    assert (raised, {output.outputs[0].finish_reason for output in last.values()}) == (0, {"length"})


def test_a_fault_of_the_device_is_the_last(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(tiny_model("llama"))
    engine.add_request("r", *REQUESTS["greedy"])

    def fail(*_: Any) -> Any:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(engine.runner, "execute", fail)
    with pytest.raises(torch.AcceleratorError):
        engine.step()
    for call in (engine.step, lambda: engine.add_request("s", *REQUESTS["greedy"])):
        with pytest.raises(EngineDeadError, match="make a new one"):
            call()


def test_limits_that_a_careless_caller_meets(tiny_chat_model: Path) -> None:
    llm = LLM(str(tiny_chat_model), device="cpu", num_blocks=20, max_num_unfinished=2, max_prompt_bytes=20)
    with pytest.raises(InvalidRequestError, match="prompt has 21 bytes of text, max_prompt_bytes=20"):
        llm.generate("é" * 10 + "e", use_tqdm=False)
    llm.generate("é" * 10, SamplingParams(max_tokens=1), use_tqdm=False)
    for name in "ab":
        llm.engine.add_request(name, "hi", SamplingParams(max_tokens=1))
    with pytest.raises(InvalidRequestError, match="2 requests are unfinished: max_num_unfinished=2"):
        llm.engine.add_request("c", "hi", SamplingParams(max_tokens=1))
    while llm.engine.has_unfinished_requests():
        llm.engine.step()
    llm.engine.add_request("c", "hi", SamplingParams(max_tokens=1))
    llm.engine.abort_request("c")
    llm.engine.step()
    for bad in ({"max_num_unfinished": 0}, {"max_prompt_bytes": "1"}, {"check_invariants": 1}):
        with pytest.raises(InvalidConfigError, match=next(iter(bad))):
            LLM(str(tiny_chat_model), device="cpu", **bad)
