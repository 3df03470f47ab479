"""Traces served by hand: who waits for whom, what a pool holds, and Figures 2 and 13 of the paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any

import pytest

from minipaged.engine.block_manager import BlockManager
from minipaged.engine.schedule import Row, Schedule
from minipaged.engine.scheduler import Scheduler
from minipaged.errors import InvalidConfigError
from minipaged.reference.contiguous import maximum, oracle
from minipaged.simulator import simulation
from minipaged.simulator.cost_model import GPUS, PAPER_SERVERS, CostModel, Server
from minipaged.simulator.model_shape import KNOWN
from minipaged.simulator.reserved_memory import ReservedMemory
from minipaged.simulator.simulation import DecodingMethod, SimulationResult, simulate
from minipaged.simulator.static_batching import simulate_static_batches
from minipaged.simulator.systems import (
    PAGED,
    POLICIES,
    SYSTEMS,
    Setting,
    saturated,
    serve,
    sustained_rate,
)
from minipaged.simulator.workload import WORKLOADS, Lengths, draw_lengths, poisson

OPT_13B = CostModel(KNOWN["opt-13b"], PAPER_SERVERS["opt-13b"], 16)
OPT_13B_ON_A100 = Setting(shape=KNOWN["opt-13b"], server=PAPER_SERVERS["opt-13b"], max_model_len=2048)
ONE = DecodingMethod()
no_one: Any = None


class Ticks:
    """A server whose steps all take a second."""

    def step_seconds(self, step: Schedule) -> float:
        return 1.0


ticks: Any = Ticks()


def scheduler_of(memory: BlockManager, **limits: int) -> Scheduler:
    """A scheduler whose limits are far, unless given."""
    return Scheduler(memory, **({"max_num_seqs": 16, "max_num_batched_tokens": 512} | limits))


def run(
    arrivals: Iterable[tuple[float, Lengths]],
    memory: BlockManager,
    method: DecodingMethod = ONE,
    **limits: int,
) -> tuple[SimulationResult, list[int]]:
    """What became of a trace in ticks, and the blocks in use in each step."""
    scheduler = scheduler_of(memory, **limits)
    in_use: list[int] = []
    outcome = simulate(
        iter(arrivals),
        scheduler,
        ticks,
        method,
        observe=lambda step: in_use.append(memory.allocator.num_in_use),
    )
    assert not list(scheduler.requests())
    assert memory.num_available == memory.num_blocks
    return outcome, in_use


def paged(num_blocks: int, block_size: int = 4, prefix_caching: bool = False) -> BlockManager:
    """A pool of blocks."""
    return BlockManager(num_blocks, block_size, enable_prefix_caching=prefix_caching)


def seconds_of(start: int, stop: int, width: int = 1) -> float:
    """A step of OPT-13B in which so many sequences compute the same tokens."""
    return OPT_13B.step_seconds(Schedule(rows=[Row(no_one, no_one, start, stop, True)] * width))


# ---------------------------------------------------------------- time


def test_one_request_takes_its_prompt_and_a_step_for_each_further_token() -> None:
    arrivals = [(7.0, Lengths(100, 4))]
    outcome = simulate(iter(arrivals), scheduler_of(paged(50, 16)), OPT_13B)
    first = seconds_of(0, 100)
    latency = first + seconds_of(100, 101) + seconds_of(101, 102) + seconds_of(102, 103)
    assert list(outcome.latencies) == pytest.approx([latency])
    assert list(outcome.first_tokens) == pytest.approx([first])
    assert outcome.normalized_latency == pytest.approx(latency / 4)
    assert outcome.seconds == pytest.approx(7 + latency)
    assert (outcome.num_steps, outcome.num_tokens, outcome.num_prompt_tokens) == (4, 4, 100)
    assert outcome.mean_running == pytest.approx(1)
    assert outcome.peak_running == 1


def test_a_prompt_beyond_the_budget_takes_several_steps() -> None:
    outcome, _ = run([(0.0, Lengths(10, 2))], paged(8), max_num_batched_tokens=4)
    assert list(outcome.first_tokens) == [3]  # 4 + 4 + 2
    assert list(outcome.latencies) == [4]


def test_two_requests_and_a_third_after_a_pause() -> None:
    """Seconds 0 to 3: A; AB; AB. B came at 0.5 and waits for the next step. C comes long after."""
    trace = [(0.0, Lengths(3, 3)), (0.5, Lengths(2, 2)), (10.25, Lengths(1, 1))]
    outcome, in_use = run(trace, paged(8))
    assert list(outcome.latencies) == [3, 2.5, 1]
    assert list(outcome.first_tokens) == [1, 1.5, 1]
    assert list(outcome.normalized) == [1, 1.25, 1]
    assert outcome.normalized_latency == pytest.approx(3.25 / 3)
    assert outcome.mean_running == pytest.approx((1 + 2 + 2 + 1) / 4)  # the pause is no step
    assert outcome.seconds == 11.25
    assert in_use == [1, 2, 3, 1]  # in the third step A has 5 tokens with a slot


def test_whoever_finds_no_room_waits_until_another_ends() -> None:
    """2 blocks of 4: B needs both, and A has one for its 2 steps. A dozen seconds of B later comes C."""
    trace = [(0.0, Lengths(2, 2)), (0.0, Lengths(5, 3)), (0.0, Lengths(8, 1))]
    outcome, _ = run(trace, paged(2))
    assert list(outcome.latencies) == [2, 5, 6]
    assert list(outcome.first_tokens) == [1, 3, 6]
    assert (outcome.num_preemptions, outcome.num_refused) == (0, 0)


def test_preemption_computes_again_and_loses_the_time() -> None:
    """3 blocks of 4, A of 4 + 6 tokens, B of 4 + 3: each has a block at first, and a second one is left.

    A takes it for its 5th token and B, the younger, finds none and gives up the one that it has. It comes
    back, with 4 + 1 tokens and so 2 blocks, when A has ended after 6 steps, and generates its other two.
    """
    outcome, in_use = run([(0.0, Lengths(4, 6)), (0.0, Lengths(4, 3))], paged(3, 4))
    assert outcome.num_preemptions == 1
    assert list(outcome.latencies) == [6, 8]
    assert list(outcome.first_tokens) == [1, 1]
    assert in_use == [2, 2, 2, 2, 2, 3, 2, 2]


def test_no_trace_is_no_time() -> None:
    outcome, _ = run([], paged(2))
    assert (outcome.num_steps, outcome.seconds, outcome.normalized_latency) == (0, 0.0, 0.0)
    assert outcome.mean_running == outcome.saved_by_sharing == sum(outcome.memory.values()) == 0.0


def test_requests_larger_than_the_pool_are_refused_and_counted() -> None:
    """4 blocks of 4: a prompt of 17 never fits, and 10 + 20 tokens outgrow it in the end."""
    trace = [(0.0, Lengths(17, 1)), (0.0, Lengths(10, 20)), (0.0, Lengths(16, 1)), (0.0, Lengths(9, 8))]
    outcome, _ = run(trace, paged(4))
    assert outcome.num_refused == 2
    assert len(outcome.latencies) == 2
    assert outcome.num_tokens == 1 + 8


def test_a_trace_is_broken_off_once_its_latencies_are_too_much() -> None:
    """One at a time: latencies of 1, 2, 3 seconds and so on, which sum up to 1, 3, 6, 10."""
    trace = [(0.0, Lengths(1, 1))] * 10
    for most, num_ended in ((0.5, 1), (2.9, 2), (5.0, 3), (6.0, 4), (54.9, 10), (1e9, 10)):
        outcome = simulate(iter(trace), scheduler_of(paged(8), max_num_seqs=1), ticks, most=most)
        assert list(outcome.latencies) == list(range(1, num_ended + 1))


# ---------------------------------------------------------------- static batches


def padded(batch: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Seconds of a batch's prompts, and of all of it, step by step."""
    width, prompt = len(batch), max(prompt for prompt, _ in batch)
    first = OPT_13B.forward_seconds(width * prompt, width, width * prompt, width * sum(range(1, prompt + 1)))
    contexts = range(prompt + 1, prompt + max(output for _, output in batch))
    decodes = [OPT_13B.forward_seconds(width, width, width * each, width * each) for each in contexts]
    return first, first + sum(decodes)


def test_static_batches_begin_and_end_together() -> None:
    """Room for two: the third waits for both, and the fourth, who comes later, is served alone."""
    trace = [(0.0, Lengths(10, 3)), (0.0, Lengths(20, 50)), (0.0, Lengths(5, 1)), (90.0, Lengths(30, 2))]
    outcome = simulate_static_batches(iter(trace), 2, 4096, OPT_13B)
    first, end = padded([(10, 3), (20, 50)])
    alone = padded([(5, 1)])[0]
    late_first, late_end = padded([(30, 2)])
    assert list(outcome.latencies) == pytest.approx([end, end, end + alone, late_end])
    assert list(outcome.first_tokens) == pytest.approx([first, first, end + alone, late_first])
    assert list(outcome.normalized) == pytest.approx([end / 3, end / 50, end + alone, late_end / 2])
    assert outcome.seconds == pytest.approx(90 + late_end)
    assert outcome.num_steps == 50 + 1 + 2
    assert (outcome.num_tokens, outcome.num_prompt_tokens, outcome.peak_running) == (56, 65, 2)
    assert outcome.mean_running == pytest.approx((2 * end + alone + late_end) / (end + alone + late_end))


def test_those_who_come_while_a_batch_runs_are_the_next_one() -> None:
    trace = [(0.0, Lengths(10, 30)), (0.01, Lengths(10, 3)), (0.02, Lengths(20, 5))]
    outcome = simulate_static_batches(iter(trace), 2, 4096, OPT_13B)
    begin, end = padded([(10, 30)])[1], padded([(10, 3), (20, 5)])[1]
    assert begin > 0.02
    assert list(outcome.latencies) == pytest.approx([begin, begin + end - 0.01, begin + end - 0.02])


def test_static_batches_need_room_for_one() -> None:
    with pytest.raises(InvalidConfigError, match="batch_size must be at least 1, got 0"):
        simulate_static_batches(iter([(0.0, Lengths(1, 1))]), 0, 2047, OPT_13B)


# ---------------------------------------------------------------- memory


@pytest.mark.parametrize("width", [2, 3, 4])
def test_samples_share_the_blocks_of_their_prompt(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt of 10 tokens in blocks of 4, and 5 tokens each: 2 full blocks stay shared.

    The third one, with 2 tokens, is copied for all but one before tokens 11 and 12 go there; 13 and 14 need
    one more block each. Tables name 3 blocks, then `width` times 3, 3, 4 and 4.
    """
    monkeypatch.setattr(simulation, "NUM_STEPS_PER_LOOK", 1)
    outcome, in_use = run([(0.0, Lengths(10, 5))], paged(20), DecodingMethod(width))
    assert in_use == [3, 2 + width, 2 + width, 2 + 2 * width, 2 + 2 * width]
    assert outcome.num_moved_blocks == width - 1
    assert (outcome.num_steps, outcome.num_tokens, len(outcome.latencies)) == (5, 5 * width, 1)
    saved = 4 * (2 * width - 2)
    assert outcome.saved_by_sharing == pytest.approx(saved / (3 + width * (3 + 3 + 4 + 4)))


def test_beams_share_what_their_parents_computed() -> None:
    """Prompt of 4 in a block of 4, and 2 beams, of 4 tokens: 1 block, then one more for each beam.

    Both go on from beam 0: its block is shared, and copied for one of them; then each from its own.
    """
    search = [[0, 0], [0, 0], [0, 1], [0, 1]]
    outcome, in_use = run([(0.0, Lengths(4, 4))], paged(20), DecodingMethod(2, [search]))
    assert in_use == [1, 3, 3, 3]
    assert outcome.num_moved_blocks == 1
    assert outcome.num_tokens == 8


def test_samples_that_reserve_share_nothing() -> None:
    memory = ReservedMemory(64, 16, maximum)
    pieces: list[int] = []
    simulate(
        iter([(0.0, Lengths(6, 3))] * 2),
        scheduler_of(memory),
        ticks,
        DecodingMethod(3),
        observe=lambda step: pieces.append(64 - memory.pieces.allocator.num_free),
    )
    assert pieces == [48] * 6  # 4 pieces of 16: three for the first request, then three for the second


def test_reserving_by_hand() -> None:
    """Pool of 64, at most 32 each: two at a time for the maximum, and all four at once for the oracle."""
    trace = [(0.0, Lengths(6, 3))] * 4
    most, _ = run(trace, ReservedMemory(64, 32, maximum))
    least, _ = run(trace, ReservedMemory(64, 32, oracle))
    assert list(most.latencies) == [3, 3, 6, 6]
    assert list(least.latencies) == [3, 3, 3, 3]
    # Until the others come in, 2 * 6 tokens are there, 2 * 2 will be, and 2 * 24 never; looked at once.
    assert list(most.memory.values()) == [12 / 64, 4 / 64, 48 / 64, 0, 0]
    assert sum(least.memory.values()) == 0  # nobody waits


@pytest.mark.parametrize(
    ("first", "second", "num_cached"),
    [
        ((13, 10, "a"), (13, 10, "a"), 8),  # 2 blocks of 4, and 2 more tokens that fill none
        ((13, 12, "a"), (13, 9, "a"), 8),
        ((13, 10, "a"), (13, 10, "b"), 0),
        ((13, 10, ""), (13, 10, ""), 8),
        ((13, 0, ""), (13, 0, ""), 0),
        ((13, 3, "a"), (13, 3, "a"), 0),
        ((8, 8, "a"), (8, 8, "a"), 4),  # the last token of a prompt is always computed
        ((8, 8, "a"), (9, 8, "a"), 8),
    ],
)
def test_prefixes_are_found_in_full_blocks(
    first: tuple[int, int, str], second: tuple[int, int, str], num_cached: int
) -> None:
    trace = [
        (arrival, Lengths(prompt, 2, prefix, group))
        for arrival, (prompt, prefix, group) in ((0.0, first), (9.0, second))
    ]
    outcome, _ = run(trace, paged(20, prefix_caching=True))
    assert outcome.num_cached_tokens == num_cached
    assert outcome.num_prompt_tokens == first[0] + second[0]
    assert run(trace, paged(20))[0].num_cached_tokens == 0
    together, _ = run([(0.0, lengths) for _, lengths in trace], paged(20, prefix_caching=True))
    assert together.num_cached_tokens == 0  # nothing is found before it is computed


def test_groups_have_names_of_any_length() -> None:
    """Of two that begin alike for 40 letters, and requests of one of them."""
    groups = ["a shop's system prompt, which is long, of "[:40] + end for end in "aab"]
    trace = [(9.0 * i, Lengths(13, 2, 12, group)) for i, group in enumerate(groups)]
    outcome, _ = run(trace, paged(20, prefix_caching=True))
    assert outcome.num_cached_tokens == 12


def test_a_prefix_is_not_found_in_what_samples_generated() -> None:
    """The first one's samples fill blocks of their own after a prompt that is all prefix."""
    trace = [(0.0, Lengths(8, 9, 8)), (20.0, Lengths(17, 2, 17))]
    outcome, _ = run(trace, paged(50, prefix_caching=True), DecodingMethod(2))
    assert outcome.num_cached_tokens == 8


def test_a_cached_prefix_saves_steps_of_prompts() -> None:
    trace = [(0.0, Lengths(17, 1, 16, "a")), (9.0, Lengths(17, 1, 16, "a"))]
    outcome, _ = run(trace, paged(20, prefix_caching=True), max_num_batched_tokens=4)
    assert list(outcome.latencies) == [5, 1]


# ---------------------------------------------------------------- the paper


@cache
def sharegpt(system: str, rate: float | None) -> SimulationResult:
    """1,000 requests of ShareGPT served by OPT-13B on an A100."""
    lengths = list(islice(draw_lengths(WORKLOADS["sharegpt"], 2048), 1000))
    if rate is None:
        return saturated(system, lengths, OPT_13B_ON_A100)
    return serve(system, poisson(lengths, rate), OPT_13B_ON_A100)


@pytest.mark.parametrize(
    ("system", "requests"),
    [("orca-max", 7.00), ("orca-pow2", 9.81), ("orca-oracle", 13.62), (PAGED, 30.42)],
)
def test_requests_that_run_at_once_as_in_figure_13(system: str, requests: float) -> None:
    outcome = sharegpt(system, 2.0)
    assert outcome.mean_running == pytest.approx(requests, rel=0.12)
    assert len(outcome.latencies) == 1000
    assert outcome.num_refused == 0


@pytest.mark.parametrize(
    ("system", "shares"),
    [
        ("orca-max", (0.204, 0.133, 0.573, 0.089)),
        ("orca-pow2", (0.268, 0.179, 0.136, 0.416)),
        ("orca-oracle", (0.382, 0.252, 0.0, 0.366)),
    ],
)
def test_memory_as_in_figure_2(system: str, shares: tuple[float, ...]) -> None:
    """Tokens, reservation, internal and, in the paper's words, external fragmentation and others."""
    tokens, reserved, internal, external, free = sharegpt(system, 2.0).memory.values()
    assert (tokens, reserved, internal, external + free) == pytest.approx(shares, abs=0.065)


def test_paging_holds_tokens_in_96_percent_of_its_slots() -> None:
    memory = sharegpt(PAGED, None).memory
    assert memory["tokens"] == pytest.approx(0.963, abs=0.015)
    assert memory["reserved"] == memory["external"] == 0


@pytest.mark.parametrize("system", [PAGED, *POLICIES])
def test_shares_of_the_memory_sum_up_to_one(system: str) -> None:
    assert sum(sharegpt(system, 2.0).memory.values()) == pytest.approx(1)


# ---------------------------------------------------------------- what is compared


def tiny_setting(num_slots: int = 64) -> Setting:
    """OPT-13B with room for very little."""
    server = PAPER_SERVERS["opt-13b"]
    kv_bytes = num_slots * KNOWN["opt-13b"].bytes_per_token
    return Setting(
        shape=KNOWN["opt-13b"],
        server=type(server)(server.gpu, 1, kv_bytes),
        max_model_len=32,
        block_size=4,
        host_bytes=8 * 4 * KNOWN["opt-13b"].bytes_per_token,
    )


def test_a_setting_has_as_many_slots_and_blocks_as_its_memory_holds() -> None:
    setting = tiny_setting(65)
    assert (setting.num_slots, setting.num_blocks) == (65, 16)
    memory = setting.memory(PAGED)
    assert memory.host_allocator is not None
    assert memory.host_allocator.num_blocks == 8
    assert setting.memory("orca-max").num_blocks == 65
    with pytest.raises(InvalidConfigError, match="hold 28 tokens of opt-13b in blocks of block_size=4"):
        tiny_setting(31)


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_serves_all_of_a_trace(system: str) -> None:
    lengths = list(islice(draw_lengths(WORKLOADS["alpaca"], 32), 40))
    outcome = saturated(system, lengths, tiny_setting())
    assert len(outcome.latencies) == 40
    assert outcome.num_tokens == sum(each.output for each in lengths)
    assert outcome.num_prompt_tokens == sum(each.prompt for each in lengths)
    assert outcome.num_refused == 0


def test_the_sustained_rate_is_the_highest_within_the_target() -> None:
    """All points that were tried agree with it, and the bracket is as narrow as six halvings make it."""
    lengths = list(islice(draw_lengths(WORKLOADS["alpaca"], 32), 150))
    target = 0.1
    found = sustained_rate(PAGED, lambda rate: lengths, tiny_setting(), target)
    good = [point.rate for point in found.points if point.latency <= target]
    bad = [point.rate for point in found.points if point.latency > target]
    assert found.rate == max(good) < min(bad)
    assert min(bad) / max(good) == pytest.approx(2 ** (1 / 64))
    assert len(found.points) == len(good) + len(bad)
    again = serve(PAGED, poisson(lengths, found.rate), tiny_setting())
    assert again.normalized_latency <= target
    assert again.mean_running == found.mean_running
    over = serve(PAGED, poisson(lengths, min(bad)), tiny_setting())
    assert over.normalized_latency > target


def test_a_target_that_no_rate_meets_gives_0() -> None:
    found = sustained_rate(PAGED, lambda rate: [Lengths(5, 5)] * 10, tiny_setting(), 0.001)
    assert (found.rate, found.mean_running, len(found.points)) == (0.0, 0.0, 1)


def test_more_sequences_than_a_step_holds_are_refused() -> None:
    scheduler = Scheduler(BlockManager(8, 4), max_num_seqs=2, max_num_batched_tokens=64)
    with pytest.raises(InvalidConfigError, match="from 1 to the 2 sequences of a step, got 4"):
        simulate(iter([(0.0, Lengths(3, 3))]), scheduler, OPT_13B, DecodingMethod(4))


def test_a_search_for_a_rate_ends_where_every_rate_will_do() -> None:
    setting = Setting(
        shape=KNOWN["opt-13b"], server=Server(GPUS["a100-40gb"], 1, 4 * 2**30), max_model_len=64
    )
    lengths = [Lengths(4, 4)] * 20
    found = sustained_rate("paged", lambda rate: lengths, setting, 1000.0, highest=8.0)
    assert found.rate == 8.0


def test_a_rate_at_which_requests_are_refused_is_not_sustained() -> None:
    """20 tokens in 5 blocks of 4 end one short of the last: a request of 4 + 30 tokens never fits."""
    shape = replace(KNOWN["opt-13b"], max_model_len=20)
    server = Server(GPUS["a100-40gb"], 1, 20 * shape.bytes_per_token)
    setting = Setting(shape=shape, server=server, max_model_len=20, block_size=4)
    assert sustained_rate("paged", lambda rate: [Lengths(4, 30)] * 5, setting, 1000.0).rate == 0.0


def test_blocks_that_hold_no_longest_request_are_refused() -> None:
    """2,000 slots are 7 blocks of 256, which hold 1,792 tokens."""
    shape = KNOWN["opt-13b"]
    server = Server(GPUS["a100-40gb"], 1, 2000 * shape.bytes_per_token)
    with pytest.raises(InvalidConfigError, match="hold 1792 tokens of opt-13b in blocks of block_size=256"):
        Setting(shape=shape, server=server, max_model_len=2000, block_size=256)
