"""Read a trace back: the tables and the pool after each of its lines, as docs/trace.md defines them.

replay.js does the same for the browser. A test replays recorded runs with both and compares every block.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from .trace import NUMBERED


class Table(NamedTuple):
    """The block table of a sequence."""

    name: str
    request: str
    blocks: list[int]
    num_tokens: int  # whose K and V are in the blocks once the step is computed
    on_host: bool


@dataclass(frozen=True)
class State:
    """The state that a trace describes after one of its lines."""

    step: int | None = None  # None before the first step and after the last
    requests: tuple[str, ...] = ()  # those that have not ended, in order of arrival
    tables: tuple[Table, ...] = ()  # by request in that order, then by number of the sequence
    cached: frozenset[int] = frozenset()

    @cached_property
    def in_pool(self) -> list[Table]:
        """The tables that name blocks of the pool, not of the host pool."""
        return [table for table in self.tables if not table.on_host]

    @cached_property
    def users(self) -> dict[int, list[Table]]:
        """The tables that name each block of the pool that is in use."""
        users: dict[int, list[Table]] = {}
        for table in self.in_pool:
            for block in table.blocks:
                users.setdefault(block, []).append(table)
        return users

    def block_state(self, block: int) -> tuple[str, int]:
        """Return what a block of the pool is, "used", "cached" or "free", and how many tables name it."""
        count = len(self.users.get(block, ()))
        return "used" if count else "cached" if block in self.cached else "free", count


def replay(lines: Iterable[str]) -> tuple[dict[str, Any], list[State]]:
    """Return the first line of a trace, which describes the run, and the state after each further line."""
    run, *steps = map(json.loads, lines)
    states = [State()]
    for line in steps:
        states.append(advance(states[-1], line))
    return run, states[1:]


def advance(before: State, line: dict[str, Any]) -> State:
    """Return the state after one more line. `before` stays as it is."""
    ended = {request["id"] for request in line.get("ended", ())}
    requests = [request for request in before.requests if request not in ended]
    requests += [request["id"] for request in line.get("arrived", ())]
    dropped = line.get("dropped", ())
    tables = {table.name: table for table in before.tables if table.name not in dropped}
    for name, new in line.get("tables", {}).items():
        request = NUMBERED.sub("", name)
        tables[name] = Table(name, request, new["blocks"], new["tokens"], new.get("host", False))
    for name, _, stop in line.get("rows", ()):
        tables[name] = tables[name]._replace(num_tokens=stop)
    rank = {request: i for i, request in enumerate(requests)}
    order = sorted(tables.values(), key=lambda table: (rank[table.request], len(table.name), table.name))
    cached = frozenset(line.get("cached", before.cached))
    return State(line.get("step"), tuple(requests), tuple(order), cached)
