"""The simulator takes the same decisions as the engine does on a real model, at every step.

Both serve the same trace from the same small pool: the simulator by its own clock, and the engine gets each
request before the step at which the simulator saw it arrive. Then they must agree, step by step, in who is
admitted and preempted, what is computed, copied and swapped, and in every block of every table.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from minipaged import LLM, BeamSearchParams, SamplingParams
from minipaged.engine import beams
from minipaged.engine.block_manager import BlockManager
from minipaged.engine.request import Request
from minipaged.engine.schedule import Schedule
from minipaged.engine.scheduler import Scheduler
from minipaged.simulator.cost_model import PAPER_SERVERS, CostModel
from minipaged.simulator.model_shape import KNOWN
from minipaged.simulator.simulation import DecodingMethod, SimulationResult, make_request, simulate
from minipaged.simulator.workload import Lengths, poisson

BYTES_PER_TOKEN = 2 * 1 * 2 * 8 * 8  # of the tiny Llama: one layer, 2 KV heads of 8 values of 8 bytes
ONE = DecodingMethod()
RATE = 30.0  # requests a second, of a server whose steps take some 25 ms


class Step(NamedTuple):
    """All that was decided for one step, and what the pool holds then. Requests are called by number."""

    rows: list[tuple[str, int, int, int]]  # request, index of the sequence, start, stop
    moves: list[tuple[str, int, int, str]]  # kind, source, destination, request
    admitted: list[str]
    preempted: list[str]
    outgrown: list[str]
    tables: dict[str, list[list[int]]]  # of those that run, of each sequence
    queues: tuple[list[str], list[str]]  # who is swapped out, and who waits
    num_in_use: int
    num_on_host: int


class Run(NamedTuple):
    """What the simulator and the engine did with a trace."""

    simulated: list[Step]
    real: list[Step]
    outcome: SimulationResult
    llm: LLM


def names(requests: Any) -> list[str]:
    """Whose they are."""
    return [request.request_id for request in requests]


def write_down(step: Schedule, scheduler: Scheduler) -> Step:
    """Everything that must be equal."""
    blocks = scheduler.blocks
    return Step(
        rows=[(row.request.request_id, row.sequence.index, row.start, row.stop) for row in step.rows],
        moves=[(move.kind, move.source, move.destination, move.request.request_id) for move in step.moves],
        admitted=names(step.admitted),
        preempted=names(step.preempted),
        outgrown=names(step.outgrown),
        tables={r.request_id: [list(s.table.blocks) for s in r.unfinished] for r in scheduler.running},
        queues=(names(scheduler.swapped), names(scheduler.waiting)),
        num_in_use=blocks.allocator.num_in_use,
        num_on_host=blocks.host_allocator.num_in_use if blocks.host_allocator else 0,
    )


def trace(count: int, seed: int = 0, prefix: int = 0, longest: int = 40) -> list[Lengths]:
    """Prompts and outputs of 1 to `longest` tokens; every other one begins like the others of its group."""
    rng = random.Random(seed)
    lengths = [Lengths(rng.randint(1, longest), rng.randint(1, longest)) for _ in range(count)]
    if not prefix:
        return lengths
    return [
        Lengths(prefix + each.prompt, each.output, prefix, "ab"[number % 4 // 2]) if number % 2 else each
        for number, each in enumerate(lengths)
    ]


def as_prompts(lengths: list[Lengths]) -> list[list[int]]:
    """The simulator's prompts with token ids of the model's: equal where they are, and else different."""
    blocks = BlockManager(1, 1)
    prompts = [make_request(blocks, i, 0.0, each).prompt_token_ids for i, each in enumerate(lengths)]
    known = {token: 3 + i for i, token in enumerate(dict.fromkeys(t for prompt in prompts for t in prompt))}
    return [[known[token] for token in prompt] for prompt in prompts]


def run_simulator(
    arrivals: Iterator[tuple[float, Lengths]], scheduler: Scheduler, method: DecodingMethod = ONE
) -> tuple[list[Step], list[int], SimulationResult]:
    """Its steps, before which of them each request arrived, and the outcome."""
    steps: list[Step] = []
    arrived: list[int] = []

    def note() -> Iterator[tuple[float, Lengths]]:
        for each in arrivals:
            yield each
            arrived.append(len(steps))  # it is asked for the next one as soon as it has taken one in

    cost = CostModel(KNOWN["opt-13b"], PAPER_SERVERS["opt-13b"], scheduler.blocks.block_size)
    outcome = simulate(
        note(), scheduler, cost, method, observe=lambda step: steps.append(write_down(step, scheduler))
    )
    return steps, arrived, outcome


def run_engine(llm: LLM, prompts: list[list[int]], params: list[Any], arrived: list[int]) -> list[Step]:
    """Its steps, where each request is handed in before the step that `arrived` says."""
    steps: list[Step] = []
    scheduler = llm.engine.scheduler
    llm.engine.observers.append(lambda step: steps.append(write_down(step, scheduler)))
    number = num_calls = 0
    while number < len(prompts) or llm.engine.has_unfinished_requests():
        while number < len(prompts) and arrived[number] <= len(steps):
            llm.engine.add_request(str(number), prompts[number], params[number])
            number += 1
        llm.engine.step()
        num_calls += 1
        assert num_calls < 5000, "no progress"
    return steps


Serve = Callable[..., Run]


@pytest.fixture
def serve(tiny_llama: Path) -> Serve:
    """A function that serves a trace on both.

    budget: max_num_batched_tokens. num_host_blocks: to swap to. rate: None for all requests at once. width:
    samples of each request. simulated: settings in which the simulator shall be different.
    """

    def serve(
        lengths: list[Lengths],
        num_blocks: int,
        block_size: int,
        budget: int = 64,
        num_host_blocks: int = 0,
        prefix_caching: bool = False,
        rate: float | None = RATE,
        method: DecodingMethod = ONE,
        simulated: dict[str, int] | None = None,
    ) -> Run:
        given = {"num_blocks": num_blocks, "block_size": block_size, "budget": budget} | (simulated or {})
        scheduler = Scheduler(
            BlockManager(
                given["num_blocks"],
                given["block_size"],
                num_host_blocks=num_host_blocks,
                enable_prefix_caching=prefix_caching,
            ),
            max_num_seqs=16,
            max_num_batched_tokens=given["budget"],
        )
        arrivals = ((0.0, each) for each in lengths) if rate is None else poisson(lengths, rate)
        steps, arrived, outcome = run_simulator(arrivals, scheduler, method)
        llm = LLM(
            str(tiny_llama),
            dtype="float64",
            device="cpu",
            num_blocks=num_blocks,
            block_size=block_size,
            max_num_seqs=16,
            max_num_batched_tokens=budget,
            enable_prefix_caching=prefix_caching,
            preemption_mode="swap" if num_host_blocks else "recompute",
            swap_space=num_host_blocks * block_size * BYTES_PER_TOKEN,
        )
        params = [sampling(i, each.output, method) for i, each in enumerate(lengths)]
        real = run_engine(llm, as_prompts(lengths), params, arrived)
        return Run(steps, real, outcome, llm)

    return serve


def sampling(number: int, output: int, method: DecodingMethod) -> SamplingParams | BeamSearchParams:
    """What the engine is asked for. Samples are so hot that they differ at once."""
    if method.searches:
        return BeamSearchParams(beam_width=method.width, max_tokens=output, ignore_eos=True)
    return SamplingParams(
        n=method.width,
        temperature=0.0 if method.width == 1 else 50.0,
        seed=number,
        max_tokens=output,
        ignore_eos=True,
    )


def check(run: Run) -> None:
    """The same steps, and the totals that follow from them."""
    for number, (simulated, real) in enumerate(zip(run.simulated, run.real, strict=False)):
        for name, expected, got in zip(Step._fields, real, simulated, strict=True):
            assert got == expected, f"step {number} differs in its {name}"
    assert len(run.simulated) == len(run.real)
    stats, outcome = run.llm.stats(), run.outcome
    assert outcome.num_steps == len(run.real)
    assert outcome.num_preemptions == stats.num_preemptions == sum(len(step.preempted) for step in run.real)
    assert outcome.num_moved_blocks == sum(len(step.moves) for step in run.real)
    assert outcome.num_refused == sum(len(step.outgrown) for step in run.real)
    assert outcome.peak_running == max(len(step.tables) for step in run.real)


def kinds(run: Run) -> set[str]:
    """Of moves that there were."""
    return {kind for step in run.real for kind, *_ in step.moves}


@pytest.mark.parametrize(("block_size", "num_blocks"), [(1, 128), (4, 32), (16, 9)])
def test_recomputation(block_size: int, num_blocks: int, serve: Serve) -> None:
    run = serve(trace(24), num_blocks, block_size)
    check(run)
    assert run.outcome.num_preemptions > 3
    assert kinds(run) == set()


@pytest.mark.parametrize(("block_size", "num_blocks"), [(1, 128), (4, 32), (16, 9)])
@pytest.mark.parametrize("num_host_tokens", [48, 400])
def test_swapping(block_size: int, num_blocks: int, num_host_tokens: int, serve: Serve) -> None:
    """With little room on the host, some are recomputed: then the queues of both kinds are merged."""
    run = serve(trace(24, seed=1), num_blocks, block_size, num_host_blocks=num_host_tokens // block_size)
    check(run)
    assert run.outcome.num_preemptions > 3
    assert kinds(run) == {"out", "in"}


@pytest.mark.parametrize(("block_size", "num_blocks"), [(1, 128), (4, 32), (16, 9)])
def test_those_who_come_at_once_come_back_in_their_order(
    block_size: int, num_blocks: int, serve: Serve
) -> None:
    """Whether they were swapped out, or wait to be recomputed."""
    run = serve(trace(24, seed=1), num_blocks, block_size, num_host_blocks=48 // block_size, rate=None)
    check(run)
    assert run.outcome.num_preemptions > 3
    assert kinds(run) == {"out", "in"}


@pytest.mark.parametrize("budget", [5, 16])
@pytest.mark.parametrize("num_host_blocks", [0, 20])
def test_prompts_in_chunks(budget: int, num_host_blocks: int, serve: Serve) -> None:
    run = serve(trace(24, seed=2), 24, 4, budget=budget, num_host_blocks=num_host_blocks)
    check(run)
    assert run.outcome.num_preemptions > 1
    assert any(stop - start > 1 and start for step in run.real for _, _, start, stop in step.rows)


@pytest.mark.parametrize(("block_size", "num_blocks"), [(1, 128), (4, 32), (16, 10)])
@pytest.mark.parametrize("num_host_tokens", [0, 200])
def test_prefix_caching(block_size: int, num_blocks: int, num_host_tokens: int, serve: Serve) -> None:
    run = serve(
        trace(24, seed=3, prefix=35),
        num_blocks,
        block_size,
        num_host_blocks=num_host_tokens // block_size,
        prefix_caching=True,
    )
    check(run)
    assert run.outcome.num_preemptions > 2
    assert run.outcome.num_cached_tokens > 60


@pytest.mark.parametrize("prefix_caching", [False, True])
@pytest.mark.parametrize(("block_size", "num_blocks"), [(1, 160), (4, 40), (16, 12)])
@pytest.mark.parametrize("num_host_tokens", [0, 300])
def test_two_samples_of_each_request(
    block_size: int, num_blocks: int, num_host_tokens: int, prefix_caching: bool, serve: Serve
) -> None:
    run = serve(
        trace(16, seed=4),
        num_blocks,
        block_size,
        num_host_blocks=num_host_tokens // block_size,
        prefix_caching=prefix_caching,
        method=DecodingMethod(2),
    )
    check(run)
    assert run.outcome.num_preemptions > 2
    assert ("copy" in kinds(run)) == (block_size > 1)


def test_samples_whose_tokens_are_recomputed_in_chunks(serve: Serve) -> None:
    """One sample may be up to date again before the other is, and goes on alone."""
    run = serve(trace(16, seed=5), 40, 4, budget=16, method=DecodingMethod(3))
    check(run)
    assert run.outcome.num_preemptions > 2


@pytest.mark.parametrize("num_host_blocks", [0, 60])
def test_beams_that_follow_the_searches_of_the_engine(
    num_host_blocks: int, serve: Serve, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = trace(12, seed=6, longest=25)
    lengths = [each._replace(output=max(each.output, 3)) for each in lengths]
    searches: dict[int, list[list[int]]] = {i: [] for i in range(len(lengths))}

    def follow(request: Request, parents: list[int], blocks: BlockManager) -> None:
        searches[int(request.request_id)].append(list(parents))
        original(request, parents, blocks)

    original = beams.follow
    params = [sampling(i, each.output, DecodingMethod(3, [[[0]]])) for i, each in enumerate(lengths)]
    llm = LLM(str(tiny_llama), dtype="float64", device="cpu", num_blocks=200, block_size=4)
    with monkeypatch.context() as patch:
        patch.setattr(beams, "follow", follow)
        run_engine(llm, as_prompts(lengths), params, [0] * len(lengths))
    method = DecodingMethod(3, list(searches.values()))
    run = serve(lengths, 36, 4, num_host_blocks=num_host_blocks, method=method)
    check(run)
    assert run.outcome.num_preemptions > 2
    assert "copy" in kinds(run)


def test_a_request_that_outgrows_the_pool(serve: Serve) -> None:
    lengths = trace(10, seed=7, longest=12)
    lengths[4] = Lengths(30, 60)
    run = serve(lengths, 16, 4)
    check(run)
    assert run.outcome.num_refused == 1
    assert [name for step in run.real for name in step.outgrown] == ["4"]


@pytest.mark.parametrize("different", [{"block_size": 5}, {"budget": 63}, {"num_blocks": 33}])
def test_other_settings_are_told_apart(different: dict[str, int], serve: Serve) -> None:
    """The simulator's settings; with the engine's own, the same trace agrees above."""
    other = serve(trace(24), 32, 4, simulated=different)
    with pytest.raises(AssertionError, match="differs"):
        check(other)
