"""9. The scheduler: decide before each step which sequence computes what: continuous batching within a budget

README.md explains it. Write each body that raises NotImplementedError; the rest is given.
Grade it: pytest lessons/09_scheduler    A hint: minipaged lessons hint 9
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from minipaged.engine.block_manager import BlockManager
from minipaged.engine.policies import FirstComeFirstServed, Policy, line_of, victim_of
from minipaged.engine.request import Request
from minipaged.engine.schedule import Move, Row, Schedule
from minipaged.engine.scheduler import _is_prefill, _of_the_request
from minipaged.reference.allocator import OutOfBlocksError


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
        raise NotImplementedError

    def requests(self) -> Iterator[Request]:
        """All requests that are not finished: the running, the swapped out, the waiting."""
        yield from self.running
        yield from self.swapped
        yield from self.waiting

    def schedule(self) -> Schedule:
        """Plan the next step. The tables of all its rows have a slot for each token computed.

        Sorting is stable: decodes come before prompts, and within each the order of `running` stays.
        """
        raise NotImplementedError

    def finish(self, request: Request) -> None:
        """Forget a request, whatever its state, and give its blocks back."""
        self._free(request)
        for queue in (self.running, self.swapped, self.waiting):
            if request in queue:
                queue.remove(request)
                return

    def _reserve_slots(self, step: Schedule) -> None:
        """Give every running sequence a slot for its newest token; preempt where the blocks run out."""
        raise NotImplementedError

    @_of_the_request
    def _append_slots(self, step: Schedule, request: Request) -> None:
        for sequence in request.unfinished:
            copied = self.blocks.append_slot(sequence)
            if copied is not None:
                step.moves.append(Move("copy", *copied, request))

    def _make_room(self, step: Schedule) -> None:
        """Preempt one running request, or end the only one: no pool will ever hold it."""
        raise NotImplementedError

    @_of_the_request
    def _preempt(self, step: Schedule, request: Request) -> None:
        """Take a request's blocks and let it wait again, at the front.

        The policy sorts the line by rank. The queues keep requests of equal rank in order of arrival.
        """
        raise NotImplementedError

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
        raise NotImplementedError

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
        raise NotImplementedError

    def _free(self, request: Request) -> None:
        for sequence in request.sequences:
            self.blocks.free(sequence)
