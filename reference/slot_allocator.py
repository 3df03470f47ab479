"""Find room for pieces of slots that must lie side by side, and split and merge what is free.

A block of paging can go to any free block. A piece needs free slots next to each other, so it matters where
the free slots lie, not only how many there are. Two classical answers: buddies, and the first gap that fits.
No kernel twin: the baseline. Lesson: lessons/01_kv_cache_size. Page: docs/concepts/fragmentation.md.
"""

from __future__ import annotations

from typing import NamedTuple

from .block_table import check_positive


class OutOfSlotsError(RuntimeError):
    """No free piece is large enough, whatever is free in all; nothing was changed. Units are slots."""

    def __init__(self, requested: int, num_free: int, largest_free: int) -> None:
        self.requested = requested
        self.num_free = num_free
        self.largest_free = largest_free
        super().__init__(
            f"asked for a piece of {requested} slots: {num_free} are free, "
            f"the largest free piece has {largest_free}"
        )


class Piece(NamedTuple):
    """Slots start to start + num_slots - 1. Token i of its request is in slot start + i."""

    start: int
    num_slots: int


class SlotAllocator:
    """A pool of slots, handed out in pieces. Every operation is all or nothing."""

    def __init__(self, num_slots: int) -> None:
        check_positive("num_slots", num_slots)
        self.num_slots = num_slots
        self.num_free = num_slots
        self._used: set[Piece] = set()

    @property
    def largest_free(self) -> int:
        """Slots of the largest free piece."""
        return max((piece.num_slots for piece in self.free_pieces()), default=0)

    def free_pieces(self) -> list[Piece]:
        """The free pieces in order of their slots."""
        raise NotImplementedError

    def allocate(self, num_slots: int) -> Piece:
        """Take a free piece of at least `num_slots` slots. Raises OutOfSlotsError where there is none."""
        check_positive("num_slots", num_slots)
        piece = self._take(num_slots)
        if piece is None:
            raise OutOfSlotsError(num_slots, self.num_free, self.largest_free)
        self._used.add(piece)
        self.num_free -= piece.num_slots
        return piece

    def free(self, piece: Piece) -> None:
        """Give a piece back, whole. Raises ValueError where it is not in use."""
        if not isinstance(piece, Piece):
            raise TypeError(f"piece must be a Piece, got {piece!r}")
        if piece not in self._used:
            raise ValueError(f"double free: {piece} is not in use")
        self._used.remove(piece)
        self.num_free += piece.num_slots

    def _take(self, num_slots: int) -> Piece | None:
        raise NotImplementedError


class BuddyAllocator(SlotAllocator):
    """Pieces are powers of two: one is found and merged in O(log num_slots) (paper section 6.1).

    A piece splits into two buddies, whose starts differ in one bit, and the lower one is used. A pool whose
    size is no power of two begins as several pieces.
    """

    def __init__(self, num_slots: int) -> None:
        super().__init__(num_slots)
        # Starts of the free pieces of each size. A dictionary is a stack from which any entry can be taken.
        self._free: dict[int, dict[int, None]] = {1 << bit: {} for bit in range(num_slots.bit_length())}
        start = 0
        for size in reversed(self._free):
            if num_slots & size:
                self._free[size][start] = None
                start += size

    def free_pieces(self) -> list[Piece]:
        """The free pieces in order of their slots."""
        return sorted(Piece(start, size) for size, starts in self._free.items() for start in starts)

    def free(self, piece: Piece) -> None:
        """Give a piece back, and merge it with its buddy for as long as that is free too."""
        super().free(piece)
        start, size = piece
        while (buddy := start ^ size) in self._free[size]:
            del self._free[size][buddy]
            start, size = min(start, buddy), 2 * size
        self._free[size][start] = None

    def _take(self, num_slots: int) -> Piece | None:
        rounded = next_power_of_two(num_slots)
        size = next((size for size, starts in self._free.items() if starts and size >= rounded), None)
        if size is None:
            return None
        start, _ = self._free[size].popitem()
        while size > rounded:
            size //= 2
            self._free[size][start + size] = None
        return Piece(start, size)


class FirstFitAllocator(SlotAllocator):
    """Pieces of exactly the size asked for, in the first gap that is large enough: O(pieces)."""

    def free_pieces(self) -> list[Piece]:
        """The gaps between the pieces in use, in order of their slots."""
        gaps, start = [], 0
        for piece in [*sorted(self._used), Piece(self.num_slots, 0)]:
            if piece.start > start:
                gaps.append(Piece(start, piece.start - start))
            start = piece.start + piece.num_slots
        return gaps

    def _take(self, num_slots: int) -> Piece | None:
        start = next((gap.start for gap in self.free_pieces() if gap.num_slots >= num_slots), None)
        return None if start is None else Piece(start, num_slots)


def next_power_of_two(number: int) -> int:
    """The smallest power of two that is not below `number`; 0 for 0."""
    return 1 << (number - 1).bit_length() if number else 0
