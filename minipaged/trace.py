"""Write down what every step does to the blocks, one JSON object a line, for the block view to replay.

The first line describes the run, each further one a step as the scheduler planned it, before it is computed;
the last one holds what ended with the last step. A line says what differs from the line before. What can be
derived is not written: counts, shared and free blocks, evictions, prefix hits and waste follow from the
tables. docs/trace.md describes the format field by field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TextIO

from . import __version__
from .engine.engine import LLMEngine
from .engine.request import Request, Sequence
from .engine.scheduler import Schedule

VERSION = 1
VIEW = Path(__file__).parent / "view"
SCRIPTS = ("replay.js", "block_view.js")  # in the order in which a page needs them
NUMBERED = re.compile(r"\.[0-9]+$")


class _Table(NamedTuple):
    """A sequence's block table as a line leaves it."""

    owner: int  # the identity of the request: one name may belong to two, one after the other
    blocks: list[int]
    on_host: bool
    num_tokens: int  # whose K and V are in the blocks


class Trace:
    """Watches an engine and writes a line to `file` for every step. One that isn't watched pays nothing.

    Use it as a context manager, or call `close` when the last step is done.
    """

    def __init__(self, engine: LLMEngine, file: TextIO) -> None:
        self._engine = engine
        self._file = file
        self._num_steps = 0
        self._live: dict[int, Request] = {}  # by the identity of the object: an id may be used again
        self._tables: dict[str, _Table] = {}
        self._cached: list[int] = []
        blocks = engine.blocks
        self._write(
            trace=VERSION,
            minipaged=__version__,
            model=engine.loaded.name,
            block_size=blocks.block_size,
            num_blocks=blocks.num_blocks,
            num_host_blocks=blocks.host_allocator.num_blocks if blocks.host_allocator else 0,
            bytes_per_block=engine.runner.shape.bytes_per_token * blocks.block_size,
        )
        engine.observers.append(self._observe)

    def __enter__(self) -> Trace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Write what ended with the last step, and watch no more. The file stays open."""
        if self._observe in self._engine.observers:
            self._engine.observers.remove(self._observe)
            self._write(**self._state(Schedule()))

    def _observe(self, step: Schedule) -> None:
        self._num_steps += 1
        self._write(step=self._num_steps, **self._state(step))

    def _state(self, step: Schedule) -> dict[str, Any]:
        """What is different from the line before: lists that would be empty are left out."""
        live = {id(request): request for request in self._engine.scheduler.requests()}
        arrived = [_arrival(request) for key, request in live.items() if key not in self._live]
        ended = [_end(request) for key, request in self._live.items() if key not in live]
        self._live = live
        tables = {_name(request, each): _table(request, each) for request, each in _sequences(live)}
        cached = self._engine.blocks.cache.cached_blocks
        state: dict[str, Any] = {
            "arrived": arrived,
            "ended": ended,
            "admitted": [request.request_id for request in step.admitted],
            "preempted": [request.request_id for request in step.preempted],
            "moves": [[m.kind, m.source, m.destination, m.request.request_id] for m in step.moves],
            "dropped": [name for name, t in self._tables.items() if not _goes_on(t, tables.get(name))],
            "tables": {
                name: {"blocks": t.blocks, "tokens": t.num_tokens, **({"host": True} if t.on_host else {})}
                for name, t in tables.items()
                if t != self._tables.get(name)
            },
            "rows": [[_name(row.request, row.sequence), row.start, row.stop] for row in step.rows],
        }
        self._tables = tables
        for name, _, stop in state["rows"]:
            self._tables[name] = tables[name]._replace(num_tokens=stop)
        if cached != self._cached:
            state["cached"] = self._cached = cached
        return {key: value for key, value in state.items() if value or key == "cached"}

    def _write(self, **fields: Any) -> None:
        self._file.write(json.dumps(fields, separators=(",", ":"), ensure_ascii=False) + "\n")


def write_page(trace: str, path: Path, title: str) -> None:
    """Write a page that replays `trace`, JSON Lines, and needs no other file and no network."""
    page = (VIEW / "page.html").read_text(encoding="utf-8")
    parts = {
        "TITLE": title.replace("&", "&amp;").replace("<", "&lt;"),
        "STYLE": (VIEW / "block_view.css").read_text(encoding="utf-8"),
        "SCRIPT": "".join((VIEW / name).read_text(encoding="utf-8") for name in SCRIPTS),
        "TRACE": trace.replace("<", "\\u003c"),  # nothing in it may end the script that holds it
    }
    # In one go, so that a title that looks like a placeholder is none.
    page = re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], page)
    path.write_text(page, encoding="utf-8")


def _sequences(live: dict[int, Request]) -> Iterator[tuple[Request, Sequence]]:
    """All sequences that hold blocks."""
    for request in live.values():
        for sequence in request.unfinished:
            if sequence.table.blocks:
                yield request, sequence


def _name(request: Request, sequence: Sequence) -> str:
    """The request's id, with the sequence's number where it has several.

    So that no two names are alike, it is also added to an id that looks as if it ended in one.
    """
    is_numbered = request.num_sequences > 1 or NUMBERED.search(request.request_id)
    return request.request_id + (f".{sequence.index}" if is_numbered else "")


def _table(request: Request, sequence: Sequence) -> _Table:
    """The table before the step is computed. A copy: the engine appends to its own."""
    blocks = list(sequence.table.blocks)
    return _Table(id(request), blocks, sequence.on_host, sequence.num_computed_tokens)


def _goes_on(table: _Table, now: _Table | None) -> bool:
    """Whether a table of that name is there still, and is the same request's."""
    return now is not None and now.owner == table.owner


def _arrival(request: Request) -> dict[str, Any]:
    return {
        "id": request.request_id,
        "prompt": request.prompt or "",
        "prompt_tokens": len(request.prompt_token_ids),
        "sequences": request.num_sequences,
    }


def _end(request: Request) -> dict[str, Any]:
    return {
        "id": request.request_id,
        "cached_tokens": request.num_cached_tokens or 0,
        "outputs": [[s.finish_reason, s.num_output_tokens, s.detokenizer.text] for s in request.sequences],
    }
