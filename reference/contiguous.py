"""Keep each request's KV cache in one piece of slots, as systems did before paging: what paging replaces.

Tokens side by side need no block table, but a request must reserve room for tokens still to come. A policy
says how much, an allocator says where, and both waste slots. Reserving the maximum for every request is
paging with block_size = max_model_len.
No kernel twin: the baseline. Lesson: lessons/01_kv_cache_size. Page: docs/concepts/fragmentation.md.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import NamedTuple

from .block_table import check_positive
from .slot_allocator import Piece, SlotAllocator, next_power_of_two

# Slots to reserve for a request of num_tokens tokens that will end with final_length of them, and may have
# max_length. A real system can't know final_length: only an oracle and our accounts do.
Policy = Callable[[int, int, int], int]


def maximum(num_tokens: int, final_length: int, max_length: int) -> int:
    """Orca (Max): as many as the request could ever fill."""
    return max_length


def power_of_two(num_tokens: int, final_length: int, max_length: int) -> int:
    """Orca (Pow2): an output guessed less than twice too long, 32 for a true 25."""
    return min(num_tokens + next_power_of_two(final_length - num_tokens), max_length)


def oracle(num_tokens: int, final_length: int, max_length: int) -> int:
    """Orca (Oracle): exactly as many as it will fill."""
    return final_length


def growing(num_tokens: int, final_length: int, max_length: int) -> int:
    """A power of two for what is there. When it is full, `append` copies into a piece twice as large."""
    return next_power_of_two(num_tokens)


class SlotUsage(NamedTuple):
    """What became of every slot of the pool, told apart as in the paper (section 3.1, Figures 2 and 3).

    External fragmentation is known before a request is served, internal fragmentation only when it has ended.
    Figure 2 draws the last two as one: "External frag. & Others".
    """

    tokens: int  # hold K and V
    reserved: int  # will hold those of tokens to come
    internal: int  # reserved for tokens that won't come
    external: int  # rounded up by the allocator, or free and of no use to the next in line
    free: int


@dataclass
class _Request:
    piece: Piece
    reserved: int  # as the policy asked; the piece may be larger
    num_tokens: int
    final_length: int


class ContiguousCache:
    """Gives each request one piece. Lengths count tokens whose K and V are stored.

    Any policy goes with any allocator. The paper's baselines (section 6.1) are the first three over a
    BuddyAllocator, which rounds up every size but a power of two; `growing` keeps to those. `oracle` over a
    FirstFitAllocator rounds nothing up, and shows what is left to lose: gaps that are too small.
    """

    def __init__(self, allocator: SlotAllocator, policy: Policy) -> None:
        self.allocator = allocator
        self.policy = policy
        self.num_copied = 0  # slots
        self._requests: dict[Hashable, _Request] = {}

    def admit(self, request_id: Hashable, num_tokens: int, final_length: int, max_length: int) -> Piece:
        """Take a piece for a request that has `num_tokens` tokens. Raises OutOfSlotsError, ValueError."""
        for name, length in (
            ("num_tokens", num_tokens),
            ("final_length", final_length),
            ("max_length", max_length),
        ):
            check_positive(name, length)
        if not num_tokens <= final_length <= max_length:
            lengths = f"{num_tokens}, {final_length}, {max_length}"
            raise ValueError(f"num_tokens <= final_length <= max_length must hold, got {lengths}")
        if request_id in self._requests:
            raise ValueError(f"request {request_id!r} has a piece already")
        reserved = self.policy(num_tokens, final_length, max_length)
        if reserved < num_tokens:
            raise ValueError(f"policy reserves {reserved} slots, the request has {num_tokens} tokens already")
        piece = self.allocator.allocate(reserved)
        self._requests[request_id] = _Request(piece, reserved, num_tokens, final_length)
        return piece

    def append(self, request_id: Hashable) -> Piece:
        """Give one more token a slot, and return the piece, another one where the old was full.

        Raises OutOfSlotsError: while it is copied, a request holds both. ValueError beyond final_length.
        """
        request = self._request(request_id)
        if request.num_tokens == request.final_length:
            raise ValueError(f"request {request_id!r} has its final_length of {request.final_length} tokens")
        if request.num_tokens == request.reserved:
            larger = self.allocator.allocate(2 * request.reserved)
            self.allocator.free(request.piece)
            request.piece, request.reserved = larger, 2 * request.reserved
            self.num_copied += request.num_tokens
        request.num_tokens += 1
        return request.piece

    def free(self, request_id: Hashable) -> None:
        """Give a request's piece back. Raises ValueError where it has none."""
        self.allocator.free(self._request(request_id).piece)
        del self._requests[request_id]

    def __contains__(self, request_id: Hashable) -> bool:
        """Whether a request has a piece."""
        return request_id in self._requests

    def piece(self, request_id: Hashable) -> Piece:
        """The slots of a request. Raises ValueError where it has none."""
        return self._request(request_id).piece

    def num_tokens(self, request_id: Hashable) -> int:
        """Tokens of a request that have a slot. Raises ValueError where it has no piece."""
        return self._request(request_id).num_tokens

    def usage(self, waiting_for: int = 0) -> SlotUsage:
        """Account for every slot while the next request in line waits for a piece of `waiting_for` slots.

        If no free piece is that large, all free slots count as external.
        """
        requests = self._requests.values()
        tokens = sum(r.num_tokens for r in requests)
        reserved = sum(min(r.reserved, r.final_length) - r.num_tokens for r in requests)
        internal = sum(max(r.reserved - r.final_length, 0) for r in requests)
        rounding = sum(r.piece.num_slots - r.reserved for r in requests)
        free = self.allocator.num_free
        stranded = free if waiting_for > self.allocator.largest_free else 0
        return SlotUsage(tokens, reserved, internal, rounding + stranded, free - stranded)

    def _request(self, request_id: Hashable) -> _Request:
        if request_id not in self._requests:
            raise ValueError(f"request {request_id!r} has no piece")
        return self._requests[request_id]
