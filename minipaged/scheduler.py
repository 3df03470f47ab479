"""Decide, before every step, which sequences compute which of their tokens: continuous batching.

First come, first served. Sequences in decode get one token each; what is left of the token budget goes to
prompts, in chunks. When blocks run out, the youngest running request gives its blocks up and comes back
first in line; its tokens are kept and computed again (paper section 4.5).
Page: docs/concepts/continuous_batching.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from .block_manager import BlockManager
from .reference.allocator import OutOfBlocksError
from .request import Request


@dataclass(frozen=True)
class Row:
    """Tokens start to stop - 1 of a request's sequence, to be computed in this step."""

    request: Request
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
        for request in sorted(self.running, key=lambda request: request.sequence.num_uncomputed_tokens > 1):
            budget -= self._add_row(step, request, budget)
        if not step.preempted:  # whoever has just given up blocks must not take them back at once
            self._admit(step, budget)
        step.rows.sort(key=lambda row: row.stop - row.start > 1)
        return step

    def finish(self, request: Request) -> None:
        """Forget a request, whatever its state, and give its blocks back."""
        self.blocks.free(request.sequence)
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)

    def _reserve_slots(self, step: Schedule) -> None:
        """Give every running sequence a slot for its newest token, oldest first, preempting from the end."""
        index = 0
        while index < len(self.running):
            request = self.running[index]
            try:
                copied = self.blocks.append_slot(request.sequence)
            except OutOfBlocksError:
                self._make_room(step)
                continue
            if copied is not None:
                step.copies.append(copied)
            index += 1

    def _make_room(self, step: Schedule) -> None:
        """Preempt the youngest running request, or end it where it is alone: no pool will ever hold it."""
        request = self.running.pop()
        self.blocks.free(request.sequence)
        if not self.running:
            step.outgrown.append(request)
            return
        request.num_preemptions += 1
        self.waiting.appendleft(request)
        step.preempted.append(request)

    def _admit(self, step: Schedule, budget: int) -> None:
        """Start waiting requests in order, while there is room for all of the next one's tokens."""
        while self.waiting and budget > 0 and len(self.running) < self.max_num_running:
            request = self.waiting[0]
            try:
                num_cached = self.blocks.admit(request.sequence, self.num_spare_blocks)
            except OutOfBlocksError:
                return
            if request.num_cached_tokens is None:
                request.num_cached_tokens = num_cached
                step.admitted.append(request)
            self.running.append(self.waiting.popleft())
            budget -= self._add_row(step, request, budget)

    def _add_row(self, step: Schedule, request: Request, budget: int) -> int:
        """Add as many of the request's uncomputed tokens as the budget allows; returns how many."""
        sequence = request.sequence
        num_tokens = min(sequence.num_uncomputed_tokens, budget)
        start = sequence.num_computed_tokens
        if num_tokens > 0:
            stop = start + num_tokens
            step.rows.append(Row(request, start, stop, is_last_chunk=stop == sequence.num_tokens))
        return max(num_tokens, 0)
