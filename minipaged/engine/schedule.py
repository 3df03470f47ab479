"""The plan of one step: which tokens are computed, which blocks are copied first, and who gave way for it.

The scheduler fills it in, and everything behind the scheduler reads it. Page: docs/architecture.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

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
    # In this order: a block may be given up and taken again. A copy for a request that then gives way does no
    # harm, since whoever gets the block next writes to it later.
    moves: list[Move] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)  # for the first time
    preempted: list[Request] = field(default_factory=list)
    outgrown: list[Request] = field(default_factory=list)  # alone, and larger than the pool

    @property
    def is_empty(self) -> bool:
        """Whether nothing is computed, moved or decided."""
        return not (self.rows or self.moves or self.preempted or self.outgrown)

    @property
    def requests(self) -> list[Request]:
        """The requests that this step computes or moves."""
        return list(dict.fromkeys([row.request for row in self.rows] + [move.request for move in self.moves]))

    @property
    def copies(self) -> list[tuple[int, int]]:
        """The copies that copy-on-write asks for: (source, destination)."""
        return [(move.source, move.destination) for move in self.moves if move.kind == "copy"]
