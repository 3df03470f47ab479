"""Calls from several threads: each public call of the engine, stopped at any line while another runs.

One thread runs the first call and stops at a line. A second thread then makes the second call, to its end or
until it waits for a lock. `make fuzz` tries every line of every pair; `make test` a sample.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from threading import Event, Thread

import pytest
from how_often import UNDER_FUZZ
from stub_engine import greedy_tokens
from test_interrupts import Line, LineTracer

from minipaged import LLM, SamplingParams
from minipaged.errors import EngineInUseError, InvalidRequestError
from minipaged.outputs import RequestOutput

NUM_CASES = 15  # for each first call, in `make test`
PROMPTS = {"ending": [5, 6, 7], "running": [5, 6, 7, 8, 9], "new": [5, 6, 7, 8, 1]}
LENGTHS = {"ending": 1, "running": 6, "new": 3}


class Scene:
    """An engine with a request that ends in its next step and one that goes on, and all that callers saw."""

    def __init__(self, llm: LLM) -> None:
        self.engine = llm.engine
        self.outputs: list[RequestOutput] = []
        self.added: list[str] = []
        self.forgotten: set[str] = set()
        self.aborted: set[str] = set()
        self.add("running")
        self.step()
        self.add("ending")

    def add(self, name: str) -> None:
        try:
            params = SamplingParams(temperature=0, max_tokens=LENGTHS[name], ignore_eos=True)
            self.engine.add_request(name, PROMPTS[name], params)
        except InvalidRequestError as error:
            assert "in use" in str(error)
        else:
            self.added.append(name)

    def abort(self, name: str) -> None:
        self.aborted.add(name)
        self.engine.abort_request(name)

    def forget(self, name: str) -> None:
        self.forgotten.add(name)
        self.engine.forget([name])

    def step(self) -> None:
        self.outputs += self.engine.step()

    def stats(self) -> None:
        stats = self.engine.stats()
        parts = (stats.num_free_blocks, stats.num_used_blocks, stats.num_cached_blocks)
        assert sum(parts) == stats.num_blocks

    def finish(self) -> None:
        """Serve what is left, and see that nothing is lost: no request, no block, no token."""
        for _ in range(100):
            if not self.engine.has_unfinished_requests():
                break
            self.step()
        self.engine.check()
        assert self.engine.blocks.allocator.num_in_use == 0
        ends = [output for output in self.outputs if output.finished]
        for name in set(self.added) - self.forgotten:
            assert [output.request_id for output in ends].count(name) == self.added.count(name)
        for output in ends:
            (one,) = output.outputs
            expected = greedy_tokens(PROMPTS[output.request_id], LENGTHS[output.request_id])
            if one.finish_reason == "length":
                assert one.token_ids == expected
            else:
                assert one.finish_reason == "abort" and output.request_id in self.aborted
                assert one.token_ids == expected[: len(one.token_ids)]


CALLS: dict[str, Callable[[Scene], None]] = {
    "add": lambda scene: scene.add("new"),
    "add an id that is ending": lambda scene: scene.add("ending"),
    "abort the ending": lambda scene: scene.abort("ending"),
    "abort the running": lambda scene: scene.abort("running"),
    "abort the new": lambda scene: scene.abort("new"),
    "forget the running": lambda scene: scene.forget("running"),
    "step": lambda scene: scene.step(),
    "stats": lambda scene: scene.stats(),
    "check": lambda scene: scene.engine.check(),
    "has_unfinished_requests": lambda scene: scene.engine.has_unfinished_requests() or None,
}


# Pairs that went wrong before there was one lock for both: these are always tried at every line.
KNOWN_TO_RACE = {("add", "abort the new"), ("step", "abort the ending")}


class Worker(Thread):
    """A thread that keeps what its call raised."""

    def __init__(self, call: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._call()
        except BaseException as error:
            self.error = error


def lines_of(call: Callable[[Scene], None], scene: Scene) -> list[int]:
    """The moments at which a call passes a line for the first time."""
    seen: list[Line] = []
    with LineTracer(seen.append):
        call(scene)
    scene.finish()
    first = {line: moment for moment, line in reversed(list(enumerate(seen)))}
    return sorted(first.values())


def interleave(
    scene: Scene, first: Callable[[Scene], None], second: Callable[[Scene], None], at: int
) -> None:
    """Stop `first` before the line with this number until `second` is done, or waits."""
    stopped, go_on = Event(), Event()
    count = 0

    def visit(_: Line) -> None:
        nonlocal count
        if count == at:
            stopped.set()
            assert go_on.wait(10)
        count += 1

    def run_first() -> None:
        with LineTracer(visit):
            first(scene)

    one, two = Worker(run_first), Worker(lambda: second(scene))
    one.start()
    while one.is_alive() and not stopped.wait(0.001):
        pass
    two.start()
    two.join(0.02)  # it may wait for a lock that `first` holds
    go_on.set()
    for worker in (one, two):
        worker.join(10)
        assert not worker.is_alive(), "a call never ends"
        if worker.error is not None:
            raise worker.error


@pytest.mark.parametrize("first", CALLS)
def test_every_call_may_meet_every_other_at_any_line(
    first: str, stub_llm: Callable[..., LLM], capsys: pytest.CaptureFixture[str]
) -> None:
    choose = random.Random(first)
    llm = stub_llm(check_invariants=True)
    moments = lines_of(CALLS[first], Scene(llm))
    cases = [(second, at) for second in CALLS for at in moments]
    if not UNDER_FUZZ:
        known = [case for case in cases if (first, case[0]) in KNOWN_TO_RACE]
        cases = known + choose.sample(cases, min(len(cases), NUM_CASES))
    for second, at in cases:
        scene = Scene(llm)
        try:
            interleave(scene, CALLS[first], CALLS[second], at)
            scene.finish()
        except BaseException as error:
            error.add_note(f"{first!r} stopped at line number {at}, and {second!r} called meanwhile")
            raise
    if UNDER_FUZZ:
        with capsys.disabled():
            print(f"\n{first}: {len(moments)} lines, {len(cases)} interleavings")


def test_threads_that_generate_on_one_llm_take_turns(stub_llm: Callable[..., LLM]) -> None:
    llm = stub_llm()
    answers: dict[int, list[list[int]]] = {}
    prompts = {number: [[number, token] for token in range(8)] for number in range(4)}
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)

    def ask(number: int) -> None:
        outputs = llm.generate(prompts[number], params, use_tqdm=False)
        answers[number] = [output.outputs[0].token_ids for output in outputs]

    workers = [Worker(lambda number=number: ask(number)) for number in prompts]  # type: ignore[misc]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
        assert not worker.is_alive() and worker.error is None
    assert answers == {n: [greedy_tokens(one, 6) for one in prompts[n]] for n in prompts}


def test_outputs_that_another_caller_took_are_not_waited_for(
    stub_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = stub_llm()
    step = llm.engine.step
    monkeypatch.setattr(llm.engine, "step", lambda: step() and [])
    with pytest.raises(EngineInUseError, match="another caller"):
        llm.generate([5, 6, 7], SamplingParams(max_tokens=2), use_tqdm=False)
