"""Decide, before every step, which sequences compute which of their tokens: continuous batching.

Sequences in decode get one token each. The rest of the token budget goes to prompts, in chunks. When blocks
run out, a request gives its blocks up and waits again: they are swapped out, or its tokens are computed again
(paper section 4.5). Lesson: lessons/09_scheduler. Page: docs/concepts/continuous_batching.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any

from ..reference.allocator import OutOfBlocksError
from .block_manager import BlockManager
from .policies import FirstComeFirstServed, Policy, line_of, victim_of
from .request import Request
from .schedule import Move, Row, Schedule


def _of_the_request(plan: Callable[..., Any]) -> Callable[..., Any]:
    """An error in planning a request carries it as `error.request`, so that the engine ends no other."""

    @wraps(plan)
    def planned(self: Scheduler, step: Schedule, request: Request) -> Any:
        try:
            return plan(self, step, request)
        except Exception as error:
            error.request = request  # type: ignore[attr-defined]
            raise

    return planned


class Scheduler:
    """Requests wait in `waiting`; those that hold blocks are in `running`, those swapped out in `swapped`."""

    def __init__(
        self,
        blocks: BlockManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        policy: Policy | None = None,
    ) -> None:
        self.blocks = blocks
        self.max_num_running = min(max_num_seqs, max_num_batched_tokens)  # each one gets a token a step
        self.max_num_batched_tokens = max_num_batched_tokens
        self.policy = policy or FirstComeFirstServed()
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.swapped: deque[Request] = deque()

    @property
    def num_spare_blocks(self) -> int:
        """The watermark: blocks that an admission leaves to those already running, 1 % of the pool."""
        return -(-self.blocks.num_blocks // 100) if self.running else 0

    def requests(self) -> Iterator[Request]:
        """All requests that are not finished: the running, the swapped out, the waiting."""
        yield from self.running
        yield from self.swapped
        yield from self.waiting

    def schedule(self) -> Schedule:
        """Plan the next step. The tables of all its rows have a slot for each token computed.

        Sorting is stable: decodes come before prompts, and within each the order of `running` stays. If it
        raises, blocks have changed hands already: reset the block manager, then call `start_over`.
        """
        step = Schedule()
        self._reserve_slots(step)
        budget = self.max_num_batched_tokens
        for request in sorted(self.running, key=_is_prefill):
            budget -= self._add_rows(step, request, budget)
        if not step.preempted and (self.swapped or self.waiting):  # who gave way must not be back at once
            self._resume_and_admit(step, budget)
        step.rows.sort(key=lambda row: row.stop - row.start > 1)
        return step

    def start_over(self, requests: Iterable[Request]) -> None:
        """Let these requests, whose tables are empty, wait in line; none is running or swapped out."""
        self.running, self.swapped = [], deque()
        self.waiting = deque(sorted(requests, key=lambda request: request.arrival_time))

    def finish(self, request: Request) -> None:
        """Forget a request, whatever its state, and give its blocks back."""
        self._free(request)
        for queue in (self.running, self.swapped, self.waiting):
            if request in queue:
                queue.remove(request)
                return

    def _reserve_slots(self, step: Schedule) -> None:
        """Give every running sequence a slot for its newest token; preempt where the blocks run out."""
        for request in list(self.running):
            while request not in step.preempted and request not in step.outgrown:
                try:
                    self._append_slots(step, request)
                    break
                except OutOfBlocksError:
                    self._make_room(step)

    @_of_the_request
    def _append_slots(self, step: Schedule, request: Request) -> None:
        for sequence in request.unfinished:
            copied = self.blocks.append_slot(sequence)
            if copied is not None:
                step.moves.append(Move("copy", *copied, request))

    def _make_room(self, step: Schedule) -> None:
        """Preempt one running request, or end the only one: no pool will ever hold it."""
        if len(self.running) == 1:
            step.outgrown.append(self.running[0])
            self.finish(self.running[0])
        else:
            self._preempt(step, victim_of(self.policy, self.running))

    @_of_the_request
    def _preempt(self, step: Schedule, request: Request) -> None:
        """Take a request's blocks and let it wait again, at the front.

        The policy sorts the line by rank. The queues keep requests of equal rank in order of arrival.
        """
        queue = self.swapped
        if not self._swap_out(step, request):
            self._free(request)
            queue = self.waiting
        self.running.remove(request)
        queue.appendleft(request)
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
        """Bring back who was swapped out and start who waits, in the policy's order, while there is room."""
        num_running = sum(request.num_sequences for request in self.running)
        if num_running >= self.max_num_running:  # the line may be long: don't sort it for nobody
            return
        for request in line_of(self.policy, [*self.swapped, *self.waiting]):
            num_running += request.num_sequences
            if budget <= 0 or num_running > self.max_num_running:
                return
            try:
                self._start(step, request)
            except OutOfBlocksError:  # nobody passes it
                if not self.running and not step.outgrown:  # the whole pool is too small for it
                    self.finish(request)
                    step.outgrown.append(request)
                return
            budget -= self._add_rows(step, request, budget)

    @_of_the_request
    def _start(self, step: Schedule, request: Request) -> None:
        """Start a request, or go on with it, with a slot for each of its tokens; all or nothing."""
        if request in self.swapped:
            pairs = self.blocks.swap_in(request.unfinished, self.num_spare_blocks)
            step.moves += [Move("in", *pair, request) for pair in pairs]
            self._append_slots(step, request)
            self.swapped.remove(request)
        else:
            num_cached = self.blocks.admit(request.unfinished, self.num_spare_blocks)
            self.waiting.remove(request)
            if request.num_cached_tokens is None:
                request.num_cached_tokens = num_cached
                step.admitted.append(request)
        self.running.append(request)

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
    num_uncomputed = sum(sequence.num_uncomputed_tokens for sequence in request.unfinished)
    return int(request.beam_search is not None and num_uncomputed > budget)


def _is_prefill(request: Request) -> bool:
    """True for a group of which some sequence has more than its newest token to compute."""
    return any(sequence.num_uncomputed_tokens > 1 for sequence in request.unfinished)
