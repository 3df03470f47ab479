"""The result of a simulation: latencies, how many requests ran at a time, and what the pool held."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from ..engine.schedule import Schedule
from ..engine.scheduler import Scheduler
from ..engine.usage import num_empty_slots
from ..reference.contiguous import SlotUsage
from .reserved_memory import ReservedMemory


@dataclass
class SimulationResult:
    """The measures of one served trace. Times are seconds of the simulated clock."""

    num_slots: int
    latencies: array[float] = field(default_factory=lambda: array("d"))  # from arrival to the last token
    normalized: array[float] = field(default_factory=lambda: array("d"))  # the same, per output token
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
        """Requests per step, averaged over the time that steps take (Figure 13)."""
        return self._running_seconds / self._busy_seconds if self._busy_seconds else 0.0

    @property
    def memory(self) -> dict[str, float]:
        """Shares of the pool while requests wait for room (Figure 2)."""
        whole = self._waiting_seconds * self.num_slots
        shares = [part / whole if whole else 0.0 for part in self._slot_seconds]
        return dict(zip(SlotUsage._fields, shares, strict=True))

    @property
    def wasted(self) -> float | None:
        """The share of the pool that is taken and holds no token while requests wait; None if none did."""
        if not self._waiting_seconds:
            return None
        return sum(self.memory[name] for name in ("reserved", "internal", "external"))

    @property
    def saved_by_sharing(self) -> float:
        """Blocks saved over blocks needed without sharing (Figure 15)."""
        return 1 - self._num_used / self._num_named if self._num_named else 0.0

    def end(self, latency: float, first_token: float, num_tokens: int, num_sequences: int = 1) -> None:
        """Count a request that has all its tokens: `num_tokens` per sequence."""
        self.latencies.append(latency)
        self.normalized.append(latency / num_tokens)
        self.sum_of_normalized += latency / num_tokens
        self.first_tokens.append(first_token)
        self.num_tokens += num_tokens * num_sequences

    def count_steps(self, num_steps: int, num_running: int, seconds: float) -> None:
        """Count steps that ran so many requests, and took `seconds` together."""
        self.num_steps += num_steps
        self.peak_running = max(self.peak_running, num_running)
        self._running_seconds += seconds * num_running
        self._busy_seconds += seconds

    def count_shared(self, step: Schedule, scheduler: Scheduler) -> None:
        """Count the blocks in use, and the table entries that name them."""
        self._num_used += scheduler.blocks.allocator.num_in_use
        self._num_named += sum(len(row.sequence.table.blocks) for row in step.rows)

    def count_slots(self, scheduler: Scheduler, seconds: float) -> None:
        """Count how all slots are used, for `seconds`, if a request waits."""
        if not scheduler.waiting:
            return
        if isinstance(scheduler.blocks, ReservedMemory):
            usage = scheduler.blocks.usage(scheduler.waiting[0])
        else:
            usage = _paged_usage(scheduler)
        self._waiting_seconds += seconds
        for i, num_slots in enumerate(usage):
            self._slot_seconds[i] += seconds * num_slots


def _paged_usage(scheduler: Scheduler) -> SlotUsage:
    """Return the use of all slots: empty ones at the ends are internal, and a free one is in no table.

    A slot of the last block that the sequence will still fill counts as wasted all the same, as in Figure 2.
    """
    blocks = scheduler.blocks
    in_use = blocks.allocator.num_in_use * blocks.block_size
    empty = num_empty_slots(scheduler.running)
    return SlotUsage(in_use - empty, 0, empty, 0, blocks.num_blocks * blocks.block_size - in_use)
