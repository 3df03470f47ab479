"""A scheduling policy decides who waits. It never changes a token, and a broken one loses no block."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest

from minipaged import (
    LLM,
    BeamSearchParams,
    FirstComeFirstServed,
    Policy,
    Priority,
    SamplingParams,
    ShortestFirst,
)
from minipaged.engine.request import Request
from minipaged.engine.schedule import Schedule
from minipaged.errors import InvalidConfigError, InvalidRequestError, PolicyError

LENGTHS = {"A": 9, "B": 3, "C": 6, "D": 4}
PRIORITIES = {"A": 0, "B": 2, "C": -1, "D": 1}


class YoungestFirst(Policy):
    """The youngest goes first and the oldest gives way: the worst that a policy can do to fairness."""

    def order(self, requests: list[Request]) -> list[Request]:
        return sorted(requests, key=lambda request: -request.arrival_time)

    def victim(self, running: list[Request]) -> Request:
        return min(running, key=lambda request: request.arrival_time)


@pytest.fixture
def start(tiny_model: Callable[[str], Path]) -> Callable[..., LLM]:
    def start(policy: Policy | None, **settings: Any) -> LLM:
        settings = {"block_size": 4, "num_blocks": 12, "check_invariants": True} | settings
        return LLM(str(tiny_model("llama")), dtype="float64", device="cpu", policy=policy, **settings)

    return start


def serve(llm: LLM, max_tokens: int = 2) -> tuple[list[str], list[str], dict[str, list[int]]]:
    """Who started, who gave way, and the tokens of A to D, which arrive at once."""
    started: list[str] = []
    gave_way: list[str] = []

    def watch(step: Schedule) -> None:
        started.extend(request.request_id for request in step.admitted)
        gave_way.extend(request.request_id for request in step.preempted)

    llm.engine.observers.append(watch)
    reads_priority = llm.engine.scheduler.policy.reads_priority
    for name, length in LENGTHS.items():
        priority = PRIORITIES[name] if reads_priority else 0
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, priority=priority)
        llm.engine.add_request(name, list(range(5, 5 + length)), params)
    tokens = {}
    while llm.engine.has_unfinished_requests():
        for output in llm.engine.step():
            tokens[output.request_id] = output.outputs[0].token_ids
    return started, gave_way, tokens


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        (None, "ABCD"),
        (FirstComeFirstServed(), "ABCD"),
        (ShortestFirst(), "BDCA"),
        (Priority(), "CADB"),
        (YoungestFirst(), "DCBA"),
    ],
)
def test_requests_start_in_the_order_of_the_policy(
    start: Callable[..., LLM], policy: Policy | None, order: str
) -> None:
    assert "".join(serve(start(policy, max_num_seqs=1))[0]) == order


@pytest.mark.parametrize(
    ("policy", "first"),
    [(FirstComeFirstServed(), "D"), (ShortestFirst(), "A"), (Priority(), "B"), (YoungestFirst(), "A")],
)
def test_the_policy_says_who_gives_way(start: Callable[..., LLM], policy: Policy, first: str) -> None:
    """A to D begin in 3 + 1 + 2 + 1 of 8 blocks, and their second tokens need more than the one left."""
    _, gave_way, _ = serve(start(policy, num_blocks=8), max_tokens=8)
    assert gave_way[0] == first


@pytest.mark.parametrize("swap", [True, False])
@pytest.mark.parametrize(
    "policy",
    [ShortestFirst(), Priority(), YoungestFirst()],
    ids=["shortest first", "priority", "youngest first"],
)
def test_no_policy_changes_a_token(
    policy: Policy,
    swap: bool,
    start: Callable[..., LLM],
    hf_greedy: Callable[..., list[list[int]]],
) -> None:
    settings: dict[str, Any] = {"preemption_mode": "swap", "swap_space": "1MiB"} if swap else {}
    _, gave_way, tokens = serve(start(policy, num_blocks=8, **settings), max_tokens=20)
    prompts = [list(range(5, 5 + length)) for length in LENGTHS.values()]
    assert gave_way
    assert list(dict(sorted(tokens.items())).values()) == hf_greedy("llama", prompts, 20)


class Broken(Policy):
    """First come, first served, except that its `fault` replaces one answer."""

    def __init__(self, method: str, fault: Callable[[list[Request]], Any]) -> None:
        self.method, self.fault = method, fault

    def order(self, requests: list[Request]) -> Any:
        return self.fault(requests) if self.method == "order" else requests

    def victim(self, running: list[Request]) -> Any:
        return self.fault(running) if self.method == "victim" else running[-1]


def stranger(requests: list[Request]) -> Request:
    return Request("X", None, [5], SamplingParams(), 1, [], lambda: None)  # type: ignore[arg-type,return-value]


class MuteError(Exception):
    """An error whose text can't be had."""

    def __str__(self) -> str:
        raise ValueError


def _mute() -> Any:
    raise MuteError


def _lines() -> Any:
    raise ValueError("two\nlines")


FAULTS: dict[str, tuple[str, Callable[[list[Request]], Any], str]] = {
    "order raises": ("order", lambda requests: 1 // 0, "Broken raised ZeroDivisionError"),
    "order is lazy and raises": ("order", lambda requests: (1 // 0 for _ in requests), "ZeroDivisionError"),
    "drops": ("order", lambda requests: requests[1:], "order must return each of 4 requests once"),
    "repeats": ("order", lambda requests: [*requests, requests[0]], "each of 4 requests once"),
    "swaps one for another": ("order", lambda requests: requests[:1] * 4, "each of 4 requests once"),
    "makes one up": ("order", lambda requests: [*requests[1:], stranger([])], "each of 4 requests once"),
    "answers nothing": ("order", lambda requests: None, "TypeError"),
    "raises in lines": ("order", lambda requests: _lines(), "two lines$"),
    "order stops": ("order", lambda requests: next(iter([])), "Broken raised StopIteration"),
    "victim stops": ("victim", lambda running: next(iter([])), "Broken raised StopIteration"),
    "anybody gives way": ("victim", lambda running: ANY, "one of the running requests"),
    "an array gives way": ("victim", lambda running: np.zeros(2), "one of the running requests"),
    "raises without a text": ("order", lambda requests: _mute(), "Broken raised MuteError: MuteError"),
    "victim raises": ("victim", lambda running: running[99], "Broken raised IndexError"),
    "nobody gives way": ("victim", lambda running: None, "one of the running requests"),
    "a stranger gives way": ("victim", stranger, "one of the running requests"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_policy_is_named_and_loses_nothing(
    fault: str, start: Callable[..., LLM], hf_greedy: Callable[..., list[list[int]]]
) -> None:
    method, answer, message = FAULTS[fault]
    llm = start(Broken(method, answer), num_blocks=8)
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    prompts = [list(range(5, 5 + length)) for length in LENGTHS.values()]
    with pytest.raises(PolicyError, match=message):
        llm.generate(prompts, params, use_tqdm=False)
    assert llm.stats().num_used_blocks == 0 and not llm.engine.has_unfinished_requests()
    for name, prompt in zip(LENGTHS, prompts, strict=True):
        llm.engine.add_request(name, prompt, params)
    with pytest.raises(PolicyError):
        for _ in range(9):
            llm.engine.step()
    llm.engine.check()
    llm.engine.scheduler.policy = FirstComeFirstServed()  # mended: the same requests go on
    tokens = {}
    while llm.engine.has_unfinished_requests():
        for output in llm.engine.step():
            tokens[output.request_id] = output.outputs[0].token_ids
    assert [tokens[name] for name in LENGTHS] == hf_greedy("llama", prompts, 8)


def test_shortest_first_lets_a_long_request_wait_while_short_ones_come(start: Callable[..., LLM]) -> None:
    """Starvation, as its docstring says: under first come, first served the long one is the second to end."""
    ended: dict[str, list[str]] = {}
    for policy in (FirstComeFirstServed(), ShortestFirst()):
        llm = start(policy, max_num_seqs=1)
        order = ended[type(policy).__name__] = []
        params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
        llm.engine.add_request("short 0", [5], params)
        llm.engine.add_request("long", list(range(5, 25)), params)
        for i in range(1, 6):
            llm.engine.add_request(f"short {i}", [5 + i], params)
            order += [output.request_id for output in llm.engine.step() if output.finished]
        while llm.engine.has_unfinished_requests():
            order += [output.request_id for output in llm.engine.step() if output.finished]
    assert ended["FirstComeFirstServed"].index("long") == 1
    assert ended["ShortestFirst"].index("long") == 6


def test_a_priority_that_nobody_reads_is_refused(start: Callable[..., LLM]) -> None:
    llm = start(None)
    with pytest.raises(InvalidRequestError, match=r"priority=3: FirstComeFirstServed reads no priority"):
        llm.generate([5, 6], SamplingParams(priority=3), use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="priority must be an integer, got 'high'"):
        SamplingParams(priority="high")  # type: ignore[arg-type]
    with_priority = start(Priority())
    assert with_priority.generate([5, 6], SamplingParams(priority=-(10**30)), use_tqdm=False)[0].finished
    assert with_priority.beam_search([5, 6], BeamSearchParams(priority=3), use_tqdm=False)[0].finished


@pytest.mark.parametrize("policy", ["fcfs", Priority, lambda requests: requests])
def test_what_is_no_policy_is_refused(start: Callable[..., LLM], policy: Any) -> None:
    with pytest.raises(InvalidConfigError, match=r"policy must be a minipaged\.Policy or None, got"):
        start(policy)


def test_a_policy_without_a_rank_says_so(start: Callable[..., LLM]) -> None:
    class Empty(Policy):
        pass

    with pytest.raises(PolicyError, match="Empty must define rank, or order and victim"):
        start(Empty()).generate([5, 6], SamplingParams(), use_tqdm=False)


def test_an_interrupt_with_a_request_of_its_own_harms_nothing(start: Callable[..., LLM]) -> None:
    class Stop(BaseException):
        request = 5

    def stop(requests: list[Request]) -> Any:
        raise Stop

    llm = start(Broken("order", stop))
    with pytest.raises(Stop):
        llm.generate([5, 6, 7], SamplingParams(), use_tqdm=False)
    llm.engine.scheduler.policy = FirstComeFirstServed()
    assert llm.generate([5, 6, 7], SamplingParams(), use_tqdm=False)[0].finished
