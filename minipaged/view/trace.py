"""Write down what every step does to the blocks, one JSON object per line, for the block view to replay.

The first line describes the run. Each further line describes a step as the scheduler planned it, before it is
computed, and the last line what ended with the last step. A line says what differs from the line before.
Counts, shared and free blocks, evictions, prefix hits and waste follow from the tables and are not written.
docs/trace.md describes the format field by field.
"""

from __future__ import annotations

import json
import re
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from .. import __version__
from ..engine.engine import LLMEngine
from ..engine.request import Request, Sequence
from ..engine.schedule import Schedule
from .token_texts import TokenTexts

VERSION = 1
NUMBERED = re.compile(r"\.[0-9]+$")


class _Table(NamedTuple):
    """A sequence's block table as a line leaves it."""

    owner: int  # the identity of the request: one name may belong to two, one after the other
    blocks: list[int]
    on_host: bool
    num_tokens: int  # whose K and V are in the blocks


class _Snapshot(NamedTuple):
    """The state of the engine that a line describes. The next line writes the difference."""

    num_steps: int
    live: dict[int, Request]  # by the identity of the object: an id may be used again
    tables: dict[str, _Table]
    cached: list[int]
    texts: dict[str, tuple[Sequence, int]]  # by table: how many texts of which sequence the lines have said


class Writable(Protocol):
    """A file, or another object that takes lines."""

    def write(self, text: str, /) -> object:
        """Take one line, which ends in a newline."""


class Trace:
    """Watches an engine and writes a line to `file` for every step. Without a trace the engine does no work.

    Use it as a context manager, or call `close` when the last step is done. Each line is one call of
    `file.write`. If that call raises, the next line holds the changes of both steps.
    """

    def __init__(self, engine: LLMEngine, file: Writable) -> None:
        self._engine = engine
        self._file = file
        self._last = _Snapshot(0, {}, {}, [], {})
        self._token_texts = TokenTexts(engine.tokenizer)
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
            self._write(**self._difference(Schedule(), self._now()))

    def _observe(self, step: Schedule) -> None:
        now = self._now()
        self._write(step=now.num_steps, **self._difference(step, now))
        for row in step.rows:
            name = _name(row.request, row.sequence)
            now.tables[name] = now.tables[name]._replace(num_tokens=row.stop)
            now.texts[name] = row.sequence, row.stop
        self._last = now  # at the very end: after an error or an interrupt the next line writes these changes

    def _now(self) -> _Snapshot:
        live = {id(request): request for request in self._engine.scheduler.requests()}
        tables = {
            _name(request, sequence): _table(request, sequence)
            for request in live.values()
            for sequence in request.unfinished
            if sequence.table.blocks
        }
        texts = {
            name: said
            for name, said in self._last.texts.items()
            if _goes_on(self._last.tables[name], tables.get(name))
        }
        return _Snapshot(
            self._last.num_steps + 1, live, tables, self._engine.blocks.cache.cached_blocks, texts
        )

    def _difference(self, step: Schedule, now: _Snapshot) -> dict[str, Any]:
        """Return what differs from the line before, without empty lists."""
        last = self._last
        state: dict[str, Any] = {
            "arrived": [_arrival(request) for key, request in now.live.items() if key not in last.live],
            "ended": [_end(request) for key, request in last.live.items() if key not in now.live],
            "admitted": [request.request_id for request in step.admitted],
            "preempted": [request.request_id for request in step.preempted],
            "moves": [[m.kind, m.source, m.destination, m.request.request_id] for m in step.moves],
            "dropped": [name for name, t in last.tables.items() if not _goes_on(t, now.tables.get(name))],
            "tables": {
                name: {"blocks": t.blocks, "tokens": t.num_tokens, **({"host": True} if t.on_host else {})}
                for name, t in now.tables.items()
                if t != last.tables.get(name)
            },
            "rows": [[_name(row.request, row.sequence), row.start, row.stop] for row in step.rows],
            "texts": self._new_texts(step, now),
        }
        if now.cached != last.cached:
            state["cached"] = now.cached
        return {key: value for key, value in state.items() if value or key == "cached"}

    def _new_texts(self, step: Schedule, now: _Snapshot) -> dict[str, list[int | str]]:
        """Return the texts of tokens that no line has said yet, behind the position of the first of them."""
        new: dict[str, list[int | str]] = {}
        for row in step.rows:
            name = _name(row.request, row.sequence)
            sequence, num_said = now.texts.get(name, (row.sequence, 0))
            start = num_said if sequence is row.sequence else 0
            if texts := self._token_texts.of(row.sequence, start, row.stop):
                new[name] = [start, *texts]
        return new

    def _write(self, **fields: Any) -> None:
        self._file.write(json.dumps(fields, separators=(",", ":"), ensure_ascii=False) + "\n")


def _name(request: Request, sequence: Sequence) -> str:
    """Return the request's id, with the sequence's number if the request has several.

    An id that ends in such a number gets one as well, so that no two names are alike.
    """
    is_numbered = request.num_sequences > 1 or NUMBERED.search(request.request_id)
    return request.request_id + (f".{sequence.index}" if is_numbered else "")


def _table(request: Request, sequence: Sequence) -> _Table:
    """Return the table before the step is computed, as a copy: the engine appends to its own."""
    blocks = list(sequence.table.blocks)
    return _Table(id(request), blocks, sequence.on_host, sequence.num_computed_tokens)


def _goes_on(table: _Table, now: _Table | None) -> bool:
    """Whether the table still exists, belongs to the same request, and was not started over."""
    return now is not None and now.owner == table.owner and now.num_tokens >= table.num_tokens


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
