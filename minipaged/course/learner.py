"""Serve a real model with a learner's own code: `minipaged generate --use lessons/03_allocator/exercise.py`.

A file may define any of the parts that the engine is built from; the rest is the library's. Nothing that such
code returns is trusted: whatever it does wrong ends in one LearnerError that says where, and never in a hang.
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
from .exercise import load_exercise, stubs
from .raised import chain, innermost_place
from .time_limit import TimeLimitError, call_time_limit

TIME_LIMIT = 20  # seconds that one call of the learner's code may take
PARTS = {  # what a file may define: the library's own, and its field of Parts
    getattr(REFERENCE, field.name).__name__: field.name for field in fields(Parts)
}


@dataclass(frozen=True)
class Learner:
    """Parts from a learner's files. `sources` says which file each of them is from."""

    parts: Parts
    block_manager_class: type[BlockManager]
    sources: dict[str, Path]
    can_cache: bool  # the allocator knows how to keep blocks for the prefix cache

    @classmethod
    def load(cls, files: Iterable[str | Path]) -> Learner:
        """Take what the engine uses from each of the files; a folder stands for its exercise.py.

        Raises LearnerError for a file that isn't there, can't be imported, defines nothing of use or what
        another one defines too, or where some of it isn't written yet.
        """
        found: dict[str, Any] = {}
        sources: dict[str, Path] = {}
        for name in files:
            path = _existing(Path(name))
            for part, value in _parts_of(path).items():
                if part in sources:
                    raise LearnerError(f"{part} is in {place(sources[part])} and in {place(path)}: name one")
                found[part], sources[part] = value, path
        own_allocator = found.get("BlockAllocator")
        can_cache = own_allocator is None or {"retain", "release"} <= _written(own_allocator)
        for part in [part for part in found if isinstance(found[part], type)]:
            complete(found[part], _original(part))
        if own_allocator is not None:
            found["BlockAllocator"] = checked_allocator(own_allocator, place(sources["BlockAllocator"]))
        if "copy_on_write" in found:
            found["copy_on_write"] = checked_copy(found["copy_on_write"], place(sources["copy_on_write"]))
        manager = found.pop("BlockManager", BlockManager)
        return cls(Parts(**{PARTS[part]: found[part] for part in found}), manager, sources, can_cache)

    @property
    def notes(self) -> list[str]:
        """Lines to print: what serves, and what doesn't therefore."""
        lines = [f"{part} is that of {place(path)}" for part, path in self.sources.items()]
        if not self.can_cache:
            lines.append("Prefix caching is off: this BlockAllocator has no retain and release")
        return lines

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Turn what the learner's code does wrong in here into a LearnerError, and break off what hangs."""
        with call_time_limit(TIME_LIMIT, self._files):
            try:
                yield
            except BaseException as error:
                told = self._explain(error)
                if told is None:
                    raise
                raise LearnerError(told) from error

    @property
    def _files(self) -> dict[str, Path]:
        return {str(path): path for path in self.sources.values()}

    def _explain(self, error: BaseException) -> str | None:
        """What to tell, or None for what isn't the learner's doing."""
        everything = ", ".join(place(path) for path in dict.fromkeys(self.sources.values()))
        causes = chain(error, "__context__")
        for cause in reversed(causes):  # the first that was noticed; what came later may follow from it
            if isinstance(cause, LearnerError):
                return str(cause)
            if isinstance(cause, BrokenPoolError):
                return f"{everything}: {cause}"
        if isinstance(error, MinipagedError | KeyboardInterrupt | SystemExit | BrokenPipeError):
            return None
        for cause in reversed(causes):  # giving blocks back may have failed as well: tell what came first
            frames = traceback.extract_tb(cause.__traceback__)
            inside = [frame for frame in frames if frame.filename in self._files]
            escaped = bool(inside) and frames[0].filename not in self._files
            if escaped and (cause is error or not isinstance(cause, OutOfBlocksError)):
                return _told(cause, self._files[inside[-1].filename], inside[-1].lineno, inside[-1].name)
        if {"block_manager.py", "prefix_cache.py", "swap.py"} & _modules(error):
            return f"{everything}: what it returned or left behind led to {describe(error)}"
        return None


def place(path: Path, line: int | None = None) -> str:
    """The path as one would type it here, with a line."""
    relative = os.path.relpath(path)
    text = relative if not relative.startswith("..") else str(path)
    return f"{text}:{line}" if line else text


def _existing(path: Path) -> Path:
    path = path / "exercise.py" if os.path.isdir(path) else path
    if not os.path.isfile(path):  # unlike Path's, no error for a name that is too long
        raise LearnerError(f"no such file: {path}")
    return path.resolve()


def _parts_of(path: Path) -> dict[str, Any]:
    """What a file defines of the parts, all of it written."""
    try:
        module = load_exercise(path)
    except (Exception, SystemExit) as error:
        line = error.lineno if isinstance(error, SyntaxError) else innermost_place(error, path)[0]
        raise LearnerError(f"{place(path, line)} can't be imported: {describe(error)}") from error
    found = {
        part: getattr(module, part)
        for part in [*PARTS, "BlockManager"]
        if getattr(module, part, None) not in (None, _original(part))  # imported from the library: not theirs
    }
    if not found:
        raise LearnerError(f"{place(path)} defines nothing that the engine uses: {', '.join(PARTS)}")
    for part, value in found.items():
        if isinstance(value, type) != isinstance(_original(part), type) or not callable(value):
            kind = "class" if isinstance(_original(part), type) else "function"
            raise LearnerError(f"{place(path)}: {part} must be a {kind}, got {value!r}")
    for top in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(top, ast.ClassDef | ast.FunctionDef) and top.name in found:
            for name, line in stubs(top):
                raise LearnerError(f"{name} is not written yet: {place(path, line)}")
    return found


def _original(part: str) -> Any:
    """The library's own."""
    return BlockManager if part == "BlockManager" else getattr(REFERENCE, PARTS[part])


def _defined(own: type) -> set[str]:
    """Names that a class or its bases define."""
    return {name for base in own.__mro__[:-1] for name in vars(base)}


def _written(own: type) -> set[str]:
    """Of those, the names that the learner defined."""
    bases = [base for base in own.__mro__[:-1] if not base.__module__.startswith("minipaged.")]
    return {name for base in bases for name in vars(base)}


def complete(own: type, original: type) -> None:
    """Give a learner's class those methods of the library's class that its lesson left out."""
    have = _defined(own)
    for name, member in vars(original).items():
        if name not in have and isinstance(member, FunctionType | property):
            setattr(own, name, member)
    if issubclass(original, BlockAllocator) and "retain" not in have:
        own._retained = frozenset()  # type: ignore[attr-defined]  # what `can_reuse` asks for


def _told(error: BaseException, path: Path, line: int | None, function: str) -> str:
    if isinstance(error, NotImplementedError):
        return f"{function} is not written yet: {place(path, line)}"
    what = describe(error)
    if isinstance(error, TimeLimitError):
        what = f"no answer within {error} s: a loop that never ends?"
    return f"{place(path, line)}, in {function}: {what}"


def _modules(error: BaseException) -> set[str]:
    return {Path(frame.filename).name for frame in traceback.extract_tb(error.__traceback__)}
