"""Decide, before every step, which sequences compute which of their tokens: continuous batching.

First come, first served, a request with all its sequences. Sequences in decode get one token each; what is
left of the token budget goes to prompts, in chunks. When blocks run out, the youngest running request gives
its blocks up and comes back first in line: they are swapped out to host memory, or its tokens are kept and
computed again (paper section 4.5).
Page: docs/concepts/continuous_batching.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ..reference.allocator import OutOfBlocksError
from .block_manager import BlockManager
from .request import Request, Sequence


class Row(NamedTuple):
    """Tokens start to stop - 1 of one of a request's sequences, to be computed in this step."""

    request: Request
    sequence: Sequence
    start: int
    stop: int
    is_last_chunk: bool  # stop is the last token known so far: the step samples the next one


class Move(NamedTuple):
    """A block to be copied before the forward: "copy" within the pool, "out" to the host, or "in"."""

    kind: str
    source: int
    destination: int
    request: Request


@dataclass
class Schedule:
    """One step: the rows to compute, decodes first, and what had to happen to make room for them."""

    rows: list[Row] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)  # in this order: a block may be given up and taken again
    admitted: list[Request] = field(default_factory=list)  # for the first time
    preempted: list[Request] = field(default_factory=list)
    outgrown: list[Request] = field(default_factory=list)  # alone, and larger than the pool
    handling: Request | None = None  # whom the planning is about right now

    @property
    def is_empty(self) -> bool:
        """Whether nothing is computed, moved or decided."""
        return not (self.rows or self.moves or self.preempted or self.outgrown)

    @property
    def requests(self) -> list[Request]:
        """The requests that this step computes, moves or was about to plan."""
        requests = [row.request for row in self.rows] + [move.request for move in self.moves]
        return list(dict.fromkeys([*requests, self.handling] if self.handling else requests))

    @property
    def copies(self) -> list[tuple[int, int]]:
        """The copies that copy-on-write asks for: (source, destination)."""
        return [(move.source, move.destination) for move in self.moves if move.kind == "copy"]


class Scheduler:
    """Requests wait in `waiting`; those that hold blocks are in `running`, those swapped out in `swapped`.

    All three are in order of arrival.
    """

    def __init__(self, blocks: BlockManager, *, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self.blocks = blocks
        self.max_num_running = min(max_num_seqs, max_num_batched_tokens)  # each one gets a token a step
        self.max_num_batched_tokens = max_num_batched_tokens
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.swapped: deque[Request] = deque()

    @property
    def num_spare_blocks(self) -> int:
        """The watermark: blocks that an admission leaves to those already running, 1 % of the pool."""
        return -(-self.blocks.num_blocks // 100) if self.running else 0

    def requests(self) -> Iterator[Request]:
        """All requests that are not finished, oldest first."""
        yield from self.running
        yield from self.swapped
        yield from self.waiting

    def schedule(self, step: Schedule | None = None) -> Schedule:
        """Plan the next step. The tables of all its rows have a slot for each token computed.

        step: filled as the planning goes on, for a caller who wants to know how far it came before it raised.
        Sorting is stable: decodes come before prompts, and within each the order of arrival stays.
        """
        step = Schedule() if step is None else step
        self._reserve_slots(step)
        budget = self.max_num_batched_tokens
        for request in sorted(self.running, key=_is_prefill):
            budget -= self._add_rows(step, request, budget)
        if not step.preempted:  # whoever has just given up blocks must not take them back at once
            self._resume_and_admit(step, budget)
        step.rows.sort(key=lambda row: row.stop - row.start > 1)
        step.handling = None
        return step

    def start_over(self, requests: Iterable[Request]) -> None:
        """Let these requests, whose tables are empty, wait in line; none is running or swapped out."""
        self.running.clear()
        self.swapped.clear()
        self.waiting.clear()
        self.waiting.extend(sorted(requests, key=lambda request: request.arrival_time))

    def finish(self, request: Request) -> None:
        """Forget a request, whatever its state, and give its blocks back."""
        self._free(request)
        for queue in (self.running, self.swapped, self.waiting):
            if request in queue:
                queue.remove(request)
                return

    def _reserve_slots(self, step: Schedule) -> None:
        """Give every running sequence a slot for its newest token, oldest first, preempting from the end."""
        index = 0
        while index < len(self.running):
            step.handling = self.running[index]
            try:
                self._append_slots(step, step.handling)
            except OutOfBlocksError:
                self._make_room(step)
                continue
            index += 1

    def _append_slots(self, step: Schedule, request: Request) -> None:
        for sequence in request.unfinished:
            copied = self.blocks.append_slot(sequence)
            if copied is not None:
                step.moves.append(Move("copy", *copied, request))

    def _make_room(self, step: Schedule) -> None:
        """Preempt the youngest running request, or end it where it is alone: no pool will ever hold it."""
        request = step.handling = self.running[-1]
        if len(self.running) == 1:
            self._free(request)
            step.outgrown.append(self.running.pop())
            return
        queue = self.swapped
        if not self._swap_out(step, request):
            self._free(request)
            queue = self.waiting
        queue.appendleft(self.running.pop())
        request.num_preemptions += 1
        step.preempted.append(request)

    def _swap_out(self, step: Schedule, request: Request) -> bool:
        """Move a group to the host pool, if there is one with room, and its K and V are worth it."""
        if self.blocks.host_allocator is None or _is_prefill(request):
            return False
        try:
            pairs = self.blocks.swap_out(request.unfinished)
        except OutOfBlocksError:
            return False
        step.moves += [Move("out", *pair, request) for pair in pairs]
        return True

    def _resume_and_admit(self, step: Schedule, budget: int) -> None:
        """Bring back what was swapped out and start what waits, in order of arrival, while there is room."""
        num_running = sum(request.num_sequences for request in self.running)
        while (self.swapped or self.waiting) and budget > 0:
            heads = [queue[0] for queue in (self.swapped, self.waiting) if queue]
            request = step.handling = min(heads, key=lambda request: request.arrival_time)
            num_running += request.num_sequences
            if num_running > self.max_num_running:
                return
            try:
                if request in self.swapped:
                    self._swap_in(step, request)
                else:
                    self._admit(step, request)
            except OutOfBlocksError:
                if not self.running and not step.outgrown:  # the whole pool is too small for it
                    self.finish(request)
                    step.outgrown.append(request)
                return
            budget -= self._add_rows(step, request, budget)

    def _swap_in(self, step: Schedule, request: Request) -> None:
        """Take a group back into the pool, with a slot for each newest token."""
        pairs = self.blocks.swap_in(request.unfinished, self.num_spare_blocks)
        step.moves += [Move("in", *pair, request) for pair in pairs]
        self._append_slots(step, request)
        self.running.append(self.swapped.popleft())

    def _admit(self, step: Schedule, request: Request) -> None:
        """Start a request, or start it again, with room for all of its tokens."""
        num_cached = self.blocks.admit(request.unfinished, self.num_spare_blocks)
        if request.num_cached_tokens is None:
            request.num_cached_tokens = num_cached
            step.admitted.append(request)
        self.running.append(self.waiting.popleft())

    def _add_rows(self, step: Schedule, request: Request, budget: int) -> int:
        """Add as many of the request's uncomputed tokens as the budget allows; returns how many.

        Its sequences go in order: a later one may share blocks that an earlier one computes.
        """
        held_back = _held_back(request, budget)
        used = 0
        for sequence in request.unfinished:
            num_tokens = min(sequence.num_uncomputed_tokens - held_back, budget - used)
            if num_tokens > 0:
                start = sequence.num_computed_tokens
                stop = start + num_tokens
                is_last_chunk = stop == sequence.num_tokens
                step.rows.append(Row(request, sequence, start, stop, is_last_chunk))
                used += num_tokens
        return used

    def _free(self, request: Request) -> None:
        for sequence in request.sequences:
            self.blocks.free(sequence)


def _held_back(request: Request, budget: int) -> int:
    """Beams are compared with each other, so none computes its last token before all of them can."""
    if request.beam_search is None:
        return 0
    return int(sum(sequence.num_uncomputed_tokens for sequence in request.unfinished) > budget)


def _is_prefill(request: Request) -> bool:
    """True for a group of which some sequence has more than its newest token to compute."""
    return any(sequence.num_uncomputed_tokens > 1 for sequence in request.unfinished)
