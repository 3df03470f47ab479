"""Ctrl-C at any line leaves a whole pool, and the next call gets the right tokens.

Three kinds: a real SIGINT, which the engine puts off until its step is done; KeyboardInterrupt raised at
the line itself, as by a second Ctrl-C; and TimeoutError, as a caller's signal handler raises it. `make fuzz`
tries 3,000 of them.
"""

from __future__ import annotations

import inspect
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from how_often import UNDER_FUZZ, how_often
from stub_engine import REQUESTS, greedy_tokens

import minipaged
from minipaged import LLM
from minipaged.engine import inbox
from minipaged.engine.inbox import interrupts_wait
from minipaged.errors import InvalidRequestError

TIMES = how_often(60, 3000)
PACKAGE = str(Path(minipaged.__file__).resolve().parent)
TOP = str(Path(PACKAGE).parent)
Line = tuple[str, int]


def lines_of(part: Any) -> set[Line]:
    """The lines of a function or a class."""
    source, first = inspect.getsourcelines(inspect.unwrap(part))
    return {(inbox.__file__, line) for line in range(first, first + len(source))}


WAITING = lines_of(interrupts_wait) | lines_of(inbox._Waiting)  # an exception there is none that a step sees


class LineTracer:
    """Calls `visit` with each line of minipaged's own code that runs in this thread."""

    def __init__(self, visit: Callable[[Line], None]) -> None:
        self._visit = visit
        self._own: dict[str, bool] = {}

    def __enter__(self) -> LineTracer:
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        path = frame.f_code.co_filename
        if path not in self._own:
            real = os.path.realpath(path)
            self._own[path] = real.startswith((PACKAGE, f"{TOP}/reference"))
        if not self._own[path]:
            return None
        if event == "line":
            self._visit((path, frame.f_lineno))
        return self._trace


def serve(llm: LLM) -> list[list[list[int]]]:
    """The tokens of all outputs of all requests, served by one call."""
    prompts, params = zip(*REQUESTS.values(), strict=True)
    outputs = llm._serve(list(prompts), list(params), use_tqdm=False)
    return [[one.token_ids for one in output.outputs] for output in outputs]


def lines_of_a_call(llm: LLM) -> list[Line]:
    """Every line that a call passes, in order."""
    seen: list[Line] = []
    with LineTracer(seen.append):
        serve(llm)
    return seen


def interrupt_at(moment: int, strike: Callable[[], None]) -> Callable[[Line], None]:
    """A visitor that strikes once, at the line with this number."""
    count = 0

    def visit(_: Line) -> None:
        nonlocal count
        count += 1
        if count == moment:
            strike()

    return visit


def raise_interrupt() -> None:
    raise KeyboardInterrupt


def raise_timeout() -> None:
    raise TimeoutError("the caller's time is up")


def assert_whole(llm: LLM) -> None:
    blocks = llm.engine.blocks
    llm.engine.check()
    assert blocks.allocator.num_free + blocks.allocator.num_cached == blocks.num_blocks
    assert blocks.host_allocator is not None
    assert blocks.host_allocator.num_free == blocks.host_allocator.num_blocks


@pytest.mark.parametrize("kind", ["signal", "exception", "timeout"])
def test_after_an_interrupt_at_any_line_the_pool_is_whole(
    kind: str, stub_llm: Callable[..., LLM], capsys: pytest.CaptureFixture[str]
) -> None:
    llm = stub_llm()
    expected = serve(llm)
    for i in (0, 3):  # the greedy ones
        assert expected[i][0] == greedy_tokens(
            REQUESTS[["greedy", "", "", "late"][i]][0], len(expected[i][0])
        )
    moments: dict[Line, list[int]] = {}
    for moment, line in enumerate(lines_of_a_call(llm), start=1):
        if kind == "signal" or line not in WAITING:
            moments.setdefault(line, []).append(moment)
    strike = {
        "signal": lambda: signal.raise_signal(signal.SIGINT),
        "exception": raise_interrupt,
        "timeout": raise_timeout,
    }[kind]
    choose = random.Random(kind)
    num_interrupted = 0
    for _ in range(TIMES // 3):
        moment = choose.choice(moments[choose.choice(list(moments))])
        try:
            with LineTracer(interrupt_at(moment, strike)):
                serve(llm)
        except (KeyboardInterrupt, TimeoutError):
            num_interrupted += 1
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert_whole(llm)
        assert serve(llm) == expected
    # The call may be over before the line comes; and an error while one token is drawn ends one request only.
    assert num_interrupted >= TIMES // 3 * (0.7 if kind == "timeout" else 0.9)
    if UNDER_FUZZ:
        with capsys.disabled():
            print(f"\n{kind}: {num_interrupted} interrupts at {len(moments)} different lines")


def test_a_second_interrupt_is_not_put_off(stub_llm: Callable[..., LLM]) -> None:
    llm = stub_llm()
    expected = serve(llm)
    reached = []

    def observe(_: Any) -> None:
        llm.engine.observers.clear()
        signal.raise_signal(signal.SIGINT)
        reached.append("after the first")
        signal.raise_signal(signal.SIGINT)
        reached.append("after the second")

    llm.engine.observers.append(observe)
    with pytest.raises(KeyboardInterrupt):
        serve(llm)
    assert reached == ["after the first"]
    assert_whole(llm)
    assert serve(llm) == expected


def test_an_interrupt_while_the_requests_of_a_call_are_forgotten(
    stub_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = stub_llm()
    expected = serve(llm)
    forget, tries = llm.engine.forget, []

    def interrupted(ids: list[str]) -> None:
        tries.append(ids)
        if len(tries) == 1:
            raise KeyboardInterrupt
        forget(ids)

    monkeypatch.setattr(llm.engine, "forget", interrupted)
    llm.engine.observers.append(lambda _: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        serve(llm)
    llm.engine.observers.clear()
    assert len(tries) == 2 and not llm.engine.has_unfinished_requests()
    assert_whole(llm)
    assert serve(llm) == expected


def test_a_call_leaves_requests_of_others_alone(stub_llm: Callable[..., LLM]) -> None:
    llm = stub_llm()
    prompt, params = REQUESTS["greedy"]
    llm.engine.add_request("llm-0", prompt, params)
    assert [one.token_ids for one in llm.generate([prompt], params, use_tqdm=False)[0].outputs]  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="prompt is empty"):
        llm.generate([prompt, []], params, use_tqdm=False)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="request_id must be a string"):
        llm.engine.add_request(["x"], prompt, params)  # type: ignore[arg-type]
    llm.engine.add_request("mine", prompt, params)
    outputs = {}
    while llm.engine.has_unfinished_requests():
        outputs |= {output.request_id: output for output in llm.engine.step()}
    assert outputs["mine"].outputs[0].token_ids == greedy_tokens(prompt, 9)


def test_an_interrupted_step_loses_no_request_and_no_output(stub_llm: Callable[..., LLM]) -> None:
    llm = stub_llm()
    expected = dict(zip(REQUESTS, serve(llm), strict=True))
    for name, (prompt, params) in REQUESTS.items():
        llm.engine.add_request(name, prompt, params)
    llm.engine.observers.append(lambda _: signal.raise_signal(signal.SIGINT))
    last = {}
    num_interrupted = 0
    while llm.engine.has_unfinished_requests():
        try:
            outputs = llm.engine.step()
        except KeyboardInterrupt:
            num_interrupted += 1
            llm.engine.observers.clear() if num_interrupted == 5 else None
            continue
        last |= {output.request_id: output for output in outputs}
    assert num_interrupted == 5
    assert {name: [one.token_ids for one in last[name].outputs] for name in last} == expected


def test_one_interrupt_within_two_bodies_comes_once_and_a_second_at_once() -> None:
    reached = []
    with pytest.raises(KeyboardInterrupt), interrupts_wait(), interrupts_wait():
        signal.raise_signal(signal.SIGINT)
        reached.append("after the first")
        signal.raise_signal(signal.SIGINT)
        reached.append("after the second")
    assert reached == ["after the first"]
    with pytest.raises(KeyboardInterrupt), interrupts_wait():
        with interrupts_wait():
            signal.raise_signal(signal.SIGINT)
        reached.append("after the inner body")
    assert reached == ["after the first", "after the inner body"]
