"""Orca's memory under our scheduler: every sequence reserves one piece of slots, and keeps it to its end.

The paper's baselines (section 6.1) schedule step by step as vLLM does, but reserve more. So the same
scheduler runs over this class in place of the block manager. reference/contiguous.py cuts the pieces.
Page: docs/concepts/fragmentation.md.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from weakref import WeakKeyDictionary

from ..engine.block_manager import BlockManager
from ..engine.request import Request, Sequence
from ..errors import InvalidConfigError
from ..reference.allocator import OutOfBlocksError
from ..reference.contiguous import ContiguousCache, Policy, SlotUsage
from ..reference.slot_allocator import BuddyAllocator, OutOfSlotsError


class ReservedMemory(BlockManager):
    """Replaces a block manager of `num_slots` blocks of one slot. No slot is ever shared."""

    def __init__(self, num_slots: int, max_model_len: int, policy: Policy) -> None:
        super().__init__(num_slots, 1, enable_prefix_caching=False)
        self.max_model_len = max_model_len
        self.pieces = ContiguousCache(BuddyAllocator(num_slots), policy)
        self._final_lengths: WeakKeyDictionary[Sequence, int] = WeakKeyDictionary()  # a trace may be long

    def expect(self, sequence: Sequence, num_output_tokens: int) -> None:
        """Tell the oracle. The last token ends its request, so it needs no slot."""
        final = sequence.num_prompt_tokens + num_output_tokens - 1
        if final >= self.max_model_len:
            raise InvalidConfigError(
                f"a request of {final + 1} tokens is longer than max_model_len={self.max_model_len}"
            )
        self._final_lengths[sequence] = final

    def admit(self, sequences: SequenceOf[Sequence], num_spare_blocks: int = 0) -> int:
        """Reserve a piece for every sequence of a group, or for none and raise OutOfBlocksError."""
        admitted: list[Sequence] = []
        try:
            for sequence in sequences:
                final = self._final_lengths[sequence]
                self.pieces.admit(sequence, sequence.num_tokens, final, self.max_model_len)
                admitted.append(sequence)
        except OutOfSlotsError as error:
            for sequence in admitted:
                self.pieces.free(sequence)
            raise OutOfBlocksError(error.requested, error.largest_free) from None
        return 0

    def append_slot(self, sequence: Sequence) -> tuple[int, int] | None:
        """Use the next slot of the piece for the newest token, if it has none yet. There always is one."""
        if sequence.num_tokens > self.pieces.num_tokens(sequence):
            self.pieces.append(sequence)
        return None

    def free(self, sequence: Sequence) -> None:
        """Give a sequence's piece up, if it has one."""
        sequence.num_computed_tokens = 0
        if sequence in self.pieces:
            self.pieces.free(sequence)

    def usage(self, waiting: Request | None) -> SlotUsage:
        """Return the use of every slot, while `waiting` is the next in line."""
        if waiting is None:
            return self.pieces.usage()
        first = waiting.sequences[0]
        final = self._final_lengths[first]
        return self.pieces.usage(self.pieces.policy(first.num_tokens, final, self.max_model_len))
