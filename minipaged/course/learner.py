"""Serve a real model with a learner's own code: `minipaged generate --use lessons/03_allocator/exercise.py`.

A file may define any of the parts that the engine is built from. The library fills in the others. The engine
trusts no result of a learner's code: a mistake ends in one LearnerError that says where, and never in a hang.
"""

from __future__ import annotations

import ast
import os
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from types import FunctionType
from typing import Any

from ..engine.block_manager import BlockManager
from ..engine.parts import REFERENCE, Parts
from ..errors import BrokenPoolError, LearnerError, MinipagedError
from ..reference.allocator import BlockAllocator, OutOfBlocksError
from .checked_parts import checked_allocator, checked_copy
from .checks import describe
from .exercise import load_exercise, location, stubs
from .raised import chain, innermost_line
from .time_limit import TimeLimitError, call_time_limit

TIME_LIMIT = 20  # seconds that one call of the learner's code may take
FIELDS = {getattr(REFERENCE, field.name).__name__: field.name for field in fields(Parts)}  # of Parts, by part
# The library's own version of each part that a file may define.
LIBRARY: dict[str, Any] = {part: getattr(REFERENCE, name) for part, name in FIELDS.items()}
LIBRARY["BlockManager"] = BlockManager


@dataclass(frozen=True)
class Learner:
    """Parts from a learner's files. `sources` holds the file of each part."""

    parts: Parts
    block_manager_class: type[BlockManager]
    sources: dict[str, Path]
    can_cache: bool  # the allocator knows how to keep blocks for the prefix cache

    @classmethod
    def load(cls, files: Iterable[str | Path]) -> Learner:
        """Take the parts of the engine from the files; a folder stands for its exercise.py.

        Raises LearnerError if a file doesn't exist, can't be imported, defines no part, or a part that
        another file defines too, or if a part isn't written yet.
        """
        parts: dict[str, Any] = {}
        sources: dict[str, Path] = {}
        for name in files:
            path = _existing(Path(name))
            for part, own in _parts_of(path).items():
                if part in sources:
                    both = f"in {location(sources[part])} and in {location(path)}"
                    raise LearnerError(f"{part} is {both}: name one")
                parts[part], sources[part] = own, path
        own_allocator = parts.get("BlockAllocator")
        can_cache = own_allocator is None or {"retain", "release"} <= _written(own_allocator)
        for part, own in parts.items():
            if isinstance(own, type):
                complete(own, LIBRARY[part])
        for part, checked in (("BlockAllocator", checked_allocator), ("copy_on_write", checked_copy)):
            if part in parts:
                parts[part] = checked(parts[part], location(sources[part]))
        manager = parts.pop("BlockManager", BlockManager)
        return cls(Parts(**{FIELDS[part]: parts[part] for part in parts}), manager, sources, can_cache)

    @property
    def notes(self) -> list[str]:
        """Lines to print: the file of each part, and whether prefix caching is off."""
        lines = [f"{part} is that of {location(path)}" for part, path in self.sources.items()]
        if not self.can_cache:
            lines.append("Prefix caching is off: this BlockAllocator has no retain and release")
        return lines

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Turn a mistake of the learner's code in here into a LearnerError, and break off what hangs."""
        with call_time_limit(TIME_LIMIT, self._files):
            try:
                yield
            except BaseException as error:
                message = self._explain(error)
                if message is None:
                    raise
                raise LearnerError(message) from error

    @property
    def _files(self) -> set[str]:
        return set(map(str, self.sources.values()))

    def _explain(self, error: BaseException) -> str | None:
        """Return the message for a mistake of the learner's code, or None for any other error."""
        files = ", ".join(location(path) for path in dict.fromkeys(self.sources.values()))
        causes = chain(error, "__context__")
        for cause in reversed(causes):  # the first that was noticed; later ones may follow from it
            if isinstance(cause, LearnerError):
                return str(cause)
            if isinstance(cause, BrokenPoolError):
                return f"{files}: {cause}"
        if isinstance(error, MinipagedError | KeyboardInterrupt | SystemExit | BrokenPipeError):
            return None
        for cause in reversed(causes):  # giving blocks back may have failed as well: tell the first
            frames = traceback.extract_tb(cause.__traceback__)
            inside = [frame for frame in frames if frame.filename in self._files]
            escaped = bool(inside) and frames[0].filename not in self._files
            if escaped and (cause is error or not isinstance(cause, OutOfBlocksError)):
                return _describe_at(cause, inside[-1])
        modules = {Path(frame.filename).name for frame in traceback.extract_tb(error.__traceback__)}
        if {"block_manager.py", "prefix_cache.py", "prefix_chain.py", "swap.py"} & modules:
            return f"{files}: what it returned or left behind led to {describe(error)}"
        return None


def _existing(path: Path) -> Path:
    path = path / "exercise.py" if os.path.isdir(path) else path
    if not os.path.isfile(path):  # unlike Path's, no error for a name that is too long
        raise LearnerError(f"no such file: {path}")
    return path.resolve()


def _parts_of(path: Path) -> dict[str, Any]:
    """Return the parts that a file defines. Raises LearnerError if one of them isn't written."""
    try:
        module = load_exercise(path)
    except (Exception, SystemExit) as error:
        line = error.lineno if isinstance(error, SyntaxError) else innermost_line([error], path)[0]
        raise LearnerError(f"{location(path, line)} can't be imported: {describe(error)}") from error
    parts = {
        part: getattr(module, part)
        for part, original in LIBRARY.items()
        if getattr(module, part, None) not in (None, original)  # imported from the library: not theirs
    }
    if not parts:
        raise LearnerError(f"{location(path)} defines nothing that the engine uses: {', '.join(FIELDS)}")
    for part, own in parts.items():
        kind = "class" if isinstance(LIBRARY[part], type) else "function"
        if isinstance(own, type) != (kind == "class") or not callable(own):
            raise LearnerError(f"{location(path)}: {part} must be a {kind}, got {own!r}")
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name in parts:
            for name, line in stubs(node):
                raise LearnerError(f"{name} is not written yet: {location(path, line)}")
    return parts


def _written(own: type) -> set[str]:
    """Return the names that the learner defined in a class and its bases."""
    bases = [base for base in own.__mro__[:-1] if not base.__module__.startswith("minipaged.")]
    return {name for base in bases for name in vars(base)}


def complete(own: type, original: type) -> None:
    """Give a learner's class the methods of the library's class that its lesson left out."""
    defined = {name for base in own.__mro__[:-1] for name in vars(base)}
    for name, member in vars(original).items():
        if name not in defined and isinstance(member, FunctionType | property):
            setattr(own, name, member)
    if issubclass(original, BlockAllocator) and "retain" not in defined:
        own._retained = frozenset()  # type: ignore[attr-defined]  # what `can_reuse` asks for


def _describe_at(error: BaseException, frame: traceback.FrameSummary) -> str:
    """Return an exception in one line, with the line and the function of the learner's file."""
    line = location(Path(frame.filename), frame.lineno)
    if isinstance(error, NotImplementedError):
        return f"{frame.name} is not written yet: {line}"
    what = describe(error)
    if isinstance(error, TimeLimitError):
        what = f"no answer within {error} s: a loop that never ends?"
    return f"{line}, in {frame.name}: {what}"
