"""Decide, before every step, which sequences compute which of their tokens: continuous batching.

First come, first served, a request with all its sequences. Sequences in decode get one token each; what is
left of the token budget goes to prompts, in chunks. When blocks run out, the youngest running request gives
its blocks up and comes back first in line; its tokens are kept and computed again (paper section 4.5).
Page: docs/concepts/continuous_batching.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from .block_manager import BlockManager
from .reference.allocator import OutOfBlocksError
from .request import Request, Sequence


@dataclass(frozen=True)
class Row:
    """Tokens start to stop - 1 of one of a request's sequences, to be computed in this step."""

    request: Request
    sequence: Sequence
    start: int
    stop: int
    is_last_chunk: bool  # stop is the last token known so far: the step samples the next one


@dataclass
class Schedule:
    """One step: the rows to compute, decodes first, and what had to happen to make room for them."""

    rows: list[Row] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)  # (source, destination), before the forward
    admitted: list[Request] = field(default_factory=list)  # for the first time
    preempted: list[Request] = field(default_factory=list)
    outgrown: list[Request] = field(default_factory=list)  # alone, and larger than the pool


class Scheduler:
    """Requests wait in `waiting`; those that hold blocks are in `running`. Both are in order of arrival."""

    def __init__(self, blocks: BlockManager, *, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self.blocks = blocks
        self.max_num_running = min(max_num_seqs, max_num_batched_tokens)  # each one gets a token a step
        self.max_num_batched_tokens = max_num_batched_tokens
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    @property
    def num_spare_blocks(self) -> int:
        """The watermark: blocks that an admission leaves to those already running, 1 % of the pool."""
        return -(-self.blocks.num_blocks // 100) if self.running else 0

    def requests(self) -> Iterator[Request]:
        """All requests that are not finished, oldest first."""
        yield from self.running
        yield from self.waiting

    def schedule(self) -> Schedule:
        """Plan the next step. The tables of all its rows have a slot for each token computed.

        Sorting is stable: decodes come before prompts, and within each the order of arrival stays.
        """
        step = Schedule()
        self._reserve_slots(step)
        budget = self.max_num_batched_tokens
        for request in sorted(self.running, key=_is_prefill):
            budget -= self._add_rows(step, request, budget)
        if not step.preempted:  # whoever has just given up blocks must not take them back at once
            self._admit(step, budget)
        step.rows.sort(key=lambda row: row.stop - row.start > 1)
        return step

    def finish(self, request: Request) -> None:
        """Forget a request, whatever its state, and give its blocks back."""
        self._free(request)
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)

    def _reserve_slots(self, step: Schedule) -> None:
        """Give every running sequence a slot for its newest token, oldest first, preempting from the end."""
        index = 0
        while index < len(self.running):
            try:
                for sequence in self.running[index].unfinished:
                    copied = self.blocks.append_slot(sequence)
                    if copied is not None:
                        step.copies.append(copied)
            except OutOfBlocksError:
                self._make_room(step)
                continue
            index += 1

    def _make_room(self, step: Schedule) -> None:
        """Preempt the youngest running request, or end it where it is alone: no pool will ever hold it."""
        request = self.running.pop()
        self._free(request)
        if not self.running:
            step.outgrown.append(request)
            return
        request.num_preemptions += 1
        self.waiting.appendleft(request)
        step.preempted.append(request)

    def _admit(self, step: Schedule, budget: int) -> None:
        """Start waiting requests in order, while there is room for all of the next one's tokens."""
        num_running = sum(request.num_sequences for request in self.running)
        while self.waiting and budget > 0:
            request = self.waiting[0]
            num_running += request.num_sequences
            if num_running > self.max_num_running:
                return
            try:
                num_cached = self.blocks.admit(request.unfinished, self.num_spare_blocks)
            except OutOfBlocksError:
                return
            if request.num_cached_tokens is None:
                request.num_cached_tokens = num_cached
                step.admitted.append(request)
            self.running.append(self.waiting.popleft())
            budget -= self._add_rows(step, request, budget)

    def _add_rows(self, step: Schedule, request: Request, budget: int) -> int:
        """Add as many of the request's uncomputed tokens as the budget allows; returns how many.

        Its sequences go in order: a later one may share blocks that an earlier one computes. Beams are
        compared with each other, so none computes its last token before all of them can.
        """
        uncomputed = [sequence.num_uncomputed_tokens for sequence in request.unfinished]
        held_back = int(request.beam_search is not None and sum(uncomputed) > budget)
        used = 0
        for sequence, num_uncomputed in zip(request.unfinished, uncomputed, strict=True):
            num_tokens = min(num_uncomputed - held_back, budget - used)
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


def _is_prefill(request: Request) -> bool:
    """True for a group of which some sequence has more than its newest token to compute."""
    return any(sequence.num_uncomputed_tokens > 1 for sequence in request.unfinished)
