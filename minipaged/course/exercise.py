"""The file that a learner writes: its text at the start, its unwritten functions, and its import.

The exercise.py.start beside each exercise is its text at the start. `reset` and `copy` take it from the
lessons of the installed package, so it is at hand in a wheel, a clone and a learner's copy.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from itertools import count
from pathlib import Path
from types import CodeType, ModuleType

from ..errors import InvalidRequestError
from .manifest import Lesson, shipped_lessons

_numbers = count()


def starting_text(lesson: Lesson) -> str:
    """Return a lesson's exercise as it is at the start. Raises InvalidRequestError for an unknown lesson."""
    path = shipped_lessons() / lesson.folder / "exercise.py.start"
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidRequestError(f"lesson {lesson.folder!r} is not of this minipaged: no {path}") from error


def is_untouched(lesson: Lesson, path: Path) -> bool:
    """Whether nothing but comments and layout has been changed in the exercise."""
    try:
        written, start = path.read_text(encoding="utf-8"), starting_text(lesson)
        return ast.dump(ast.parse(written)) == ast.dump(ast.parse(start))
    except (OSError, SyntaxError, ValueError, InvalidRequestError):
        return False


def unwritten(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the stubs of a file, or none if it can't be read."""
    with suppress(OSError, SyntaxError, ValueError):
        yield from stubs(ast.parse(path.read_text(encoding="utf-8")))


def stubs(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield name and line of each function that ends in `raise NotImplementedError`."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    for node in sorted(functions, key=lambda node: node.lineno):
        if ast.unparse(node.body[-1]) == "raise NotImplementedError":
            yield node.name, node.body[-1].lineno


def load_exercise(path: Path) -> ModuleType:
    """Import the file at `path` anew, under a new name."""
    name = f"minipaged_exercise_{next(_numbers)}"
    spec = importlib.util.spec_from_file_location(name, path, loader=_Source(name, str(path)))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and Triton look themselves up there
    spec.loader.exec_module(module)
    return module


class _Source(SourceFileLoader):
    """Compiles the file as it is: bytecode in a cache may be of a text of the same second and length."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def location(path: Path, line: int | None = None) -> str:
    """Return the path as one would type it here, with the line if there is one."""
    relative = os.path.relpath(path)
    return (str(path) if relative.startswith("..") else relative) + (f":{line}" if line else "")
