"""Count what the pool holds and what it wastes, step by step.

Waste is what the paper's Figure 2 shows: slots that are reserved and hold no token. Paging wastes only the
end of each sequence's last block; a system that reserves the longest possible output wastes the rest of it.
Page: docs/concepts/fragmentation.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from ..outputs import CacheStats
from ..reference.block_table import BlockTable
from .block_manager import BlockManager
from .request import Request
from .schedule import Schedule
from .scheduler import Scheduler


class Peak(NamedTuple):
    """The step in which most blocks were in use."""

    used: int = 0  # blocks in use
    shared: int = 0  # of them, named by more than one table
    saved: int = 0  # table entries beyond the first that name a block


class Usage:
    """Totals over all steps. A slot reserved for one step counts as one slot-step."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.num_preemptions = 0
        self.num_swapped_out_blocks = 0
        self.num_prompt_tokens = 0
        self.num_cached_prompt_tokens = 0
        self.num_generated_tokens = 0
        self.peak = Peak()
        self._used_block_steps = 0
        self._reserved_slot_steps = 0
        self._saved_block_steps = 0
        self._empty_slot_steps = 0
        self._token_steps = 0
        self._max_len_steps = 0

    def record(
        self, step: Schedule, running: Sequence[Request], blocks: BlockManager, max_model_len: int
    ) -> None:
        """Take in one step, after scheduling and before its tokens are sampled.

        A step that computes nothing doesn't count, but its preemptions and moves do.
        """
        self.num_preemptions += len(step.preempted)
        self.num_swapped_out_blocks += sum(move.kind == "out" for move in step.moves)
        if not step.rows:
            return
        self.num_steps += 1
        for request in step.admitted:
            self.num_prompt_tokens += len(request.prompt_token_ids)
            self.num_cached_prompt_tokens += request.num_cached_tokens or 0
        tables = _tables(running)
        num_used, num_saved = blocks.allocator.num_in_use, _num_saved(tables)
        if num_used > self.peak.used:
            self.peak = Peak(num_used, _num_shared(tables) if num_saved else 0, num_saved)
        self._reserved_slot_steps += num_used * blocks.block_size
        self._used_block_steps += num_used
        self._saved_block_steps += num_saved
        self._empty_slot_steps += num_empty_slots(running)
        self._token_steps += sum(table.num_tokens for table in tables)
        self._max_len_steps += len(tables) * max_model_len

    def stats(self, scheduler: Scheduler, blocks: BlockManager, bytes_per_token: int) -> CacheStats:
        """The pool now, with the totals so far."""
        tables = _tables(scheduler.running)
        return CacheStats(
            num_blocks=blocks.num_blocks,
            block_size=blocks.block_size,
            bytes_per_block=bytes_per_token * blocks.block_size,
            num_free_blocks=blocks.allocator.num_free,
            num_used_blocks=blocks.allocator.num_in_use,
            num_cached_blocks=blocks.allocator.num_cached,
            num_shared_blocks=_num_shared(tables),
            num_blocks_saved=_num_saved(tables),
            num_empty_slots=num_empty_slots(scheduler.running),
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            num_swapped=len(scheduler.swapped),
            peak_used_blocks=self.peak.used,
            num_prompt_tokens=self.num_prompt_tokens,
            num_cached_prompt_tokens=self.num_cached_prompt_tokens,
            num_generated_tokens=self.num_generated_tokens,
            num_steps=self.num_steps,
            num_preemptions=self.num_preemptions,
            num_swapped_out_blocks=self.num_swapped_out_blocks,
            blocks_saved_by_sharing=_share(
                self._saved_block_steps, self._saved_block_steps + self._used_block_steps
            ),
            waste=_share(self._empty_slot_steps, self._reserved_slot_steps),
            waste_if_reserved=_share(self._max_len_steps - self._token_steps, self._max_len_steps),
        )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _tables(running: Sequence[Request]) -> list[BlockTable]:
    return [sequence.table for request in running for sequence in request.unfinished]


def _num_shared(tables: list[BlockTable]) -> int:
    """Blocks that more than one table names."""
    entries = Counter(block for table in tables for block in table.blocks)
    return sum(count > 1 for count in entries.values())


def _num_saved(tables: list[BlockTable]) -> int:
    """Table entries beyond the first that name a block."""
    distinct: set[int] = set().union(*(table.blocks for table in tables))
    return sum(len(table.blocks) for table in tables) - len(distinct)


def num_empty_slots(running: Sequence[Request]) -> int:
    """Slots that hold no token, at the ends of last blocks. A shared last block counts once."""
    return sum(
        {table.blocks[-1]: table.num_empty_slots for table in _tables(running) if table.blocks}.values()
    )
