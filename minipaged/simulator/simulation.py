"""Serve a trace: the engine's loop with a clock of its own, and a cost model where the model would be.

What a decoder does is done without logits: every sequence gets tokens until it has as many as the trace says.
Page: docs/paper.md.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

from ..engine.beam_scores import BeamSearch
from ..engine.beams import follow
from ..engine.block_manager import BlockManager
from ..engine.decoding import fan_out
from ..engine.request import Request
from ..engine.request import Sequence as RequestSequence
from ..engine.scheduler import Schedule, Scheduler
from ..engine.usage import num_empty_slots
from ..errors import InvalidConfigError
from ..reference.contiguous import SlotUsage
from ..sampling_params import BeamSearchParams, SamplingParams
from .cost_model import CostModel
from .reserved_memory import ReservedMemory
from .workload import Lengths

NUM_STEPS_PER_LOOK = 8  # at the memory: a look costs more than a step

Parents = list[list[int]]  # for each step of a search, whom each beam continues


class Way(NamedTuple):
    """How a request is answered: by `width` samples, or by so many beams that follow recorded searches."""

    width: int = 1
    searches: Sequence[Parents] = ()


ONE_SAMPLE = Way()


@dataclass
class Outcome:
    """What became of a trace. Times are seconds of the simulated clock."""

    num_slots: int
    latencies: array[float] = field(default_factory=lambda: array("d"))  # from arrival to the last token
    normalized: array[float] = field(default_factory=lambda: array("d"))  # the same, by output token
    first_tokens: array[float] = field(default_factory=lambda: array("d"))
    sum_of_normalized: float = 0.0
    num_refused: int = 0  # larger than the pool
    num_steps: int = 0
    num_tokens: int = 0  # generated
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_moved_blocks: int = 0
    peak_running: int = 0
    seconds: float = 0.0
    _running_seconds: float = 0.0
    _busy_seconds: float = 0.0
    _waiting_seconds: float = 0.0
    _slot_seconds: list[float] = field(default_factory=lambda: [0.0] * 5)
    _num_used: int = 0  # blocks in use, and table entries that name them, summed over steps
    _num_named: int = 0

    @property
    def normalized_latency(self) -> float:
        """The paper's measure (section 6.1): the mean of each request's latency over its output length."""
        return self.sum_of_normalized / len(self.normalized) if self.normalized else 0.0

    @property
    def mean_running(self) -> float:
        """Requests in a step, on average over the time that steps take (Figure 13)."""
        return self._running_seconds / self._busy_seconds if self._busy_seconds else 0.0

    @property
    def memory(self) -> dict[str, float]:
        """Shares of the pool while requests wait for room: Figure 2."""
        whole = self._waiting_seconds * self.num_slots
        shares = [part / whole if whole else 0.0 for part in self._slot_seconds]
        return dict(zip(SlotUsage._fields, shares, strict=True))

    @property
    def wasted(self) -> float | None:
        """The share of the pool that is taken and holds no token while requests wait; None if none did."""
        shares = self.memory
        return (
            sum(shares[name] for name in ("reserved", "internal", "external"))
            if any(shares.values())
            else None
        )

    @property
    def saved_by_sharing(self) -> float:
        """Blocks saved over blocks needed without sharing (Figure 15)."""
        return 1 - self._num_used / self._num_named if self._num_named else 0.0

    def end(self, latency: float, first_token: float, num_tokens: int, num_sequences: int = 1) -> None:
        """Take in a request that has its `num_tokens` tokens, in each of its sequences."""
        self.latencies.append(latency)
        self.normalized.append(latency / num_tokens)
        self.sum_of_normalized += latency / num_tokens
        self.first_tokens.append(first_token)
        self.num_tokens += num_tokens * num_sequences

    def look(self, scheduler: Scheduler, seconds: float) -> None:
        """Account for all slots, for the `seconds` until the next look."""
        waiting = scheduler.waiting[0] if scheduler.waiting else None
        if isinstance(scheduler.blocks, ReservedMemory):
            usage = scheduler.blocks.usage(waiting)
        else:
            usage = _paged_usage(scheduler)
        if waiting is not None:
            self._waiting_seconds += seconds
            for i, part in enumerate(usage):
                self._slot_seconds[i] += seconds * part


def simulate(
    arrivals: Iterator[tuple[float, Lengths]],
    scheduler: Scheduler,
    cost: CostModel,
    way: Way = ONE_SAMPLE,
    observe: Callable[[Schedule], None] | None = None,
    most: float = math.inf,
) -> Outcome:
    """Serve all of `arrivals`, (seconds, lengths) in order of time, until the last has ended.

    observe: called with every step, before it counts as computed. Raises InvalidConfigError for a way of
    which no step can hold a request. most: where the normalized latencies sum up to more, whoever asks knows
    enough, and the rest is left.
    """
    if not 1 <= way.width <= scheduler.max_num_running or any(len(search) < 2 for search in way.searches):
        raise InvalidConfigError(
            f"width must be from 1 to the {scheduler.max_num_running} sequences of a step, got {way.width}, "
            "and a recorded search at least two steps long"
        )
    outcome = Outcome(scheduler.blocks.num_blocks * scheduler.blocks.block_size)
    clock, seconds_since_look, number = 0.0, 0.0, 0
    last = -math.inf
    upcoming = next(arrivals, None)
    while outcome.sum_of_normalized <= most:
        while upcoming is not None and upcoming[0] <= clock:
            # The scheduler merges its queues by these, so that no two may come at the same time.
            last = max(upcoming[0], math.nextafter(last, math.inf))
            scheduler.waiting.append(make_request(scheduler.blocks, number, last, upcoming[1], way))
            upcoming, number = next(arrivals, None), number + 1
        step = scheduler.schedule()
        for request in step.outgrown:
            scheduler.finish(request)
            outcome.num_refused += 1
        if step.is_empty:
            if upcoming is None:
                break
            clock = upcoming[0]
            continue
        if observe is not None:
            observe(step)
        seconds = cost.step_seconds(step)
        clock += seconds
        seconds_since_look += seconds
        if outcome.num_steps % NUM_STEPS_PER_LOOK == 0:
            outcome.look(scheduler, seconds_since_look)
            seconds_since_look = 0.0
        _count(outcome, step, scheduler, seconds)
        if way.width > 1:
            outcome._num_used += scheduler.blocks.allocator.num_in_use
            outcome._num_named += sum(len(row.sequence.table.blocks) for row in step.rows)
        _advance(step, scheduler, clock, outcome, way)
    outcome.seconds = clock
    return outcome


def make_request(
    blocks: BlockManager, number: int, arrival: float, lengths: Lengths, way: Way = ONE_SAMPLE
) -> Request:
    """A request whose prompt, but for the shared prefix, is like no other's."""
    token_ids = [_group_id(lengths.group)] * lengths.prefix + [number] * (lengths.prompt - lengths.prefix)
    params = SamplingParams(n=way.width) if way.width > 1 and not way.searches else _ONE
    search = None
    if way.searches:
        search = BeamSearch(BeamSearchParams(beam_width=way.width), frozenset(), lengths.output)
    reserves = isinstance(blocks, ReservedMemory)
    sequences = [
        _new_sequence(blocks, list(token_ids), index) for index in range(way.width if reserves else 1)
    ]
    if isinstance(blocks, ReservedMemory):
        for sequence in sequences:
            blocks.expect(sequence, lengths.output)
    return Request(
        request_id=str(number),
        prompt=None,
        prompt_token_ids=token_ids,
        params=params,
        max_tokens=lengths.output,
        sequences=sequences,
        new_detokenizer=_no_text,
        beam_search=search,
        arrival_time=arrival,
    )


_ONE = SamplingParams()


def _no_text() -> Any:
    """Stands for a detokenizer: no text is ever asked for."""
    return None


def _group_id(group: str) -> int:
    """A token id of 64 bits that only this group's prefix has: below those of requests and of samples."""
    return -(1 << 32) - int.from_bytes(blake2b(group.encode(), digest_size=7).digest(), "big")


def _new_sequence(blocks: BlockManager, token_ids: list[int], index: int) -> RequestSequence:
    return RequestSequence(
        token_ids,
        blocks.new_chain(token_ids, None),
        blocks.new_table(),
        _no_text(),
        num_prompt_tokens=len(token_ids),
        seed=0,
        index=index,
    )


def _count(outcome: Outcome, step: Schedule, scheduler: Scheduler, seconds: float) -> None:
    num_running = len(scheduler.running)
    outcome.num_steps += 1
    outcome.num_preemptions += len(step.preempted)
    outcome.num_moved_blocks += len(step.moves)
    outcome.peak_running = max(outcome.peak_running, num_running)
    outcome._running_seconds += seconds * num_running
    outcome._busy_seconds += seconds
    for request in step.admitted:
        outcome.num_prompt_tokens += len(request.prompt_token_ids)
        outcome.num_cached_tokens += request.num_cached_tokens or 0


def _advance(step: Schedule, scheduler: Scheduler, clock: float, outcome: Outcome, way: Way) -> None:
    """Every sequence whose tokens are all computed gets one more, or ends."""
    publish = scheduler.blocks.publish
    groups: dict[Request, list[RequestSequence]] = {}
    for request, sequence, _, stop, is_last_chunk in step.rows:
        publish(sequence, stop)
        if not is_last_chunk:
            continue
        if way.width > 1:
            groups.setdefault(request, []).append(sequence)
            continue
        sequence.token_ids.append(0)
        if request.first_token_time is None:
            request.first_token_time = clock
        if len(sequence.token_ids) - sequence.num_prompt_tokens == request.max_tokens:
            _end(request, scheduler, clock, outcome)
    for request, current in groups.items():
        for sequence in _fork(request, current, scheduler.blocks, way):
            sequence.token_ids.append(-1 - sequence.index)
            if sequence.num_output_tokens == request.max_tokens:
                sequence.finish_reason = "length"
                scheduler.blocks.free(sequence)
        if request.first_token_time is None:
            request.first_token_time = clock
        if not request.unfinished:
            _end(request, scheduler, clock, outcome)


def _fork(
    request: Request, current: list[RequestSequence], blocks: BlockManager, way: Way
) -> list[RequestSequence]:
    """The sequences that get a token: samples fan out after the prompt, beams follow a recorded search.

    After a preemption some samples may be up to date before the others, and go on alone: those in `current`.
    """
    if way.searches and not isinstance(blocks, ReservedMemory):
        done = request.sequences[0].num_output_tokens
        if done + 1 < request.max_tokens:  # a search that ends forks nobody
            search = way.searches[int(request.request_id) % len(way.searches)]
            follow(request, search[done if done < len(search) else 1 + done % (len(search) - 1)], blocks)
        return request.sequences
    if len(request.sequences) < way.width:
        return fan_out(request, blocks)
    return sorted(current, key=lambda sequence: sequence.index)


def _end(request: Request, scheduler: Scheduler, clock: float, outcome: Outcome) -> None:
    scheduler.finish(request)
    latency = clock - request.arrival_time
    first = clock if request.first_token_time is None else request.first_token_time
    outcome.end(latency, first - request.arrival_time, request.max_tokens, request.num_sequences)


def _paged_usage(scheduler: Scheduler) -> SlotUsage:
    """The same account for blocks: empty slots at the ends are internal, and free is what no table names.

    A slot of the last block that the sequence will still fill counts as wasted all the same, as in Figure 2.
    """
    blocks = scheduler.blocks
    in_use = blocks.allocator.num_in_use * blocks.block_size
    empty = num_empty_slots(scheduler.running)
    return SlotUsage(in_use - empty, 0, empty, 0, blocks.num_blocks * blocks.block_size - in_use)
