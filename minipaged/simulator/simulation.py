"""Serve a trace: the engine's loop with a clock of its own, and a cost model in place of the model.

There are no logits: every sequence gets tokens until it has as many as the trace says. Page: docs/paper.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from ..engine.block_manager import BlockManager
from ..engine.request import Request
from ..engine.request import Sequence as RequestSequence
from ..engine.schedule import Schedule
from ..engine.scheduler import Scheduler
from ..errors import InvalidConfigError
from ..sampling_params import BeamSearchParams, SamplingParams
from .cost_model import CostModel
from .reserved_memory import ReservedMemory
from .result import SimulationResult
from .workload import Lengths

NUM_STEPS_PER_LOOK = 8  # counting the slots takes longer than a step

Parents = list[list[int]]  # per step of a search, the beam that each new beam continues


class DecodingMethod(NamedTuple):
    """How a request is answered: by `width` samples, or by `width` beams that follow recorded searches."""

    width: int = 1
    searches: Sequence[Parents] = ()


ONE_SAMPLE = DecodingMethod()


def simulate(
    arrivals: Iterator[tuple[float, Lengths]],
    scheduler: Scheduler,
    cost: CostModel,
    method: DecodingMethod = ONE_SAMPLE,
    observe: Callable[[Schedule], None] | None = None,
    most: float = math.inf,
) -> SimulationResult:
    """Serve all of `arrivals`, (seconds, lengths) in order of time, until the last has ended.

    observe: called with every step, before it counts as computed. most: stop once the normalized latencies
    sum up to more. Raises InvalidConfigError if a request of this method fits no step.
    """
    _check_method(method, scheduler.max_num_running)
    result = SimulationResult(scheduler.blocks.num_blocks * scheduler.blocks.block_size)
    clock, uncounted_seconds = 0.0, 0.0
    upcoming = _Upcoming(arrivals)
    while result.sum_of_normalized <= most:
        for number, arrival, lengths in upcoming.take(clock):
            scheduler.waiting.append(make_request(scheduler.blocks, number, arrival, lengths, method))
        step = scheduler.schedule()
        for request in step.outgrown:
            scheduler.finish(request)
            result.num_refused += 1
        if step.is_empty:
            if upcoming.next is None:
                break
            clock = upcoming.next[0]
            continue
        if observe is not None:
            observe(step)
        seconds = cost.step_seconds(step)
        clock += seconds
        uncounted_seconds += seconds
        if result.num_steps % NUM_STEPS_PER_LOOK == 0:
            result.count_slots(scheduler, uncounted_seconds)
            uncounted_seconds = 0.0
        _count(result, step, scheduler, seconds)
        if method.width > 1:
            result.count_shared(step, scheduler)
        _advance(step, scheduler, clock, result, method)
    result.seconds = clock
    return result


def _check_method(method: DecodingMethod, max_num_running: int) -> None:
    if not 1 <= method.width <= max_num_running or any(len(search) < 2 for search in method.searches):
        raise InvalidConfigError(
            f"width must be from 1 to the {max_num_running} sequences of a step, got {method.width}, "
            "and a recorded search at least two steps long"
        )


class _Upcoming:
    """The arrivals that are still to come, numbered. `next` is the first of them."""

    def __init__(self, arrivals: Iterator[tuple[float, Lengths]]) -> None:
        self._arrivals = arrivals
        self._number = 0
        self._last = -math.inf
        self.next = next(arrivals, None)

    def take(self, clock: float) -> Iterator[tuple[int, float, Lengths]]:
        """Yield number, arrival time and lengths of each request that has come by `clock`.

        The scheduler orders requests by arrival time, so no two get the same.
        """
        while self.next is not None and self.next[0] <= clock:
            self._last = max(self.next[0], math.nextafter(self._last, math.inf))
            yield self._number, self._last, self.next[1]
            self.next, self._number = next(self._arrivals, None), self._number + 1


def make_request(
    blocks: BlockManager, number: int, arrival: float, lengths: Lengths, method: DecodingMethod = ONE_SAMPLE
) -> Request:
    """Return a request. Its prompt, except for the shared prefix, is like no other's."""
    token_ids = [_group_id(lengths.group)] * lengths.prefix + [number] * (lengths.prompt - lengths.prefix)
    params = SamplingParams(n=method.width) if method.width > 1 and not method.searches else _ONE
    search = None
    if method.searches:
        from ..engine.beam_scores import (
            BeamSearch,
        )  # loads torch, and the help of a command must not wait for it

        search = BeamSearch(BeamSearchParams(beam_width=method.width), frozenset(), lengths.output)
    num_sequences = method.width if isinstance(blocks, ReservedMemory) else 1
    sequences = [_new_sequence(blocks, list(token_ids), index) for index in range(num_sequences)]
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
    """Stand in for a detokenizer: nothing reads a simulated text."""
    return None


def _group_id(group: str) -> int:
    """Return a token id of 64 bits for this group's prefix, below the ids of requests and of samples."""
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


def _count(result: SimulationResult, step: Schedule, scheduler: Scheduler, seconds: float) -> None:
    result.count_steps(1, len(scheduler.running), seconds)
    result.num_preemptions += len(step.preempted)
    result.num_moved_blocks += len(step.moves)
    for request in step.admitted:
        result.num_prompt_tokens += len(request.prompt_token_ids)
        result.num_cached_tokens += request.num_cached_tokens or 0


def _advance(
    step: Schedule, scheduler: Scheduler, clock: float, result: SimulationResult, method: DecodingMethod
) -> None:
    """Give every sequence whose tokens are all computed one more, or end it."""
    publish = scheduler.blocks.publish
    groups: dict[Request, list[RequestSequence]] = {}
    for request, sequence, _, stop, is_last_chunk in step.rows:
        publish(sequence, stop)
        if not is_last_chunk:
            continue
        if method.width > 1:
            groups.setdefault(request, []).append(sequence)
            continue
        sequence.token_ids.append(0)
        if request.first_token_time is None:
            request.first_token_time = clock
        if len(sequence.token_ids) - sequence.num_prompt_tokens == request.max_tokens:
            _end(request, scheduler, clock, result)
    for request, current in groups.items():
        for sequence in _fork(request, current, scheduler.blocks, method):
            sequence.token_ids.append(-1 - sequence.index)
            if sequence.num_output_tokens == request.max_tokens:
                sequence.finish_reason = "length"
                scheduler.blocks.free(sequence)
        if request.first_token_time is None:
            request.first_token_time = clock
        if not request.unfinished:
            _end(request, scheduler, clock, result)


def _fork(
    request: Request, current: list[RequestSequence], blocks: BlockManager, method: DecodingMethod
) -> list[RequestSequence]:
    """Return the sequences that get a token: samples fan out after the prompt, beams follow a search.

    current: the sequences whose tokens are all computed. After a preemption these may be some of the samples,
    which go on alone.
    """
    from ..engine.beams import follow
    from ..engine.decoding import fan_out

    if method.searches and not isinstance(blocks, ReservedMemory):
        done = request.sequences[0].num_output_tokens
        if done + 1 < request.max_tokens:  # a search that ends forks nobody
            search = method.searches[int(request.request_id) % len(method.searches)]
            follow(request, search[done if done < len(search) else 1 + done % (len(search) - 1)], blocks)
        return request.sequences
    if len(request.sequences) < method.width:
        return fan_out(request, blocks)
    return sorted(current, key=lambda sequence: sequence.index)


def _end(request: Request, scheduler: Scheduler, clock: float, result: SimulationResult) -> None:
    scheduler.finish(request)
    latency = clock - request.arrival_time
    first = clock if request.first_token_time is None else request.first_token_time
    result.end(latency, first - request.arrival_time, request.max_tokens, request.num_sequences)
