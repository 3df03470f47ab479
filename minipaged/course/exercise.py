"""The file that a learner writes: as it is at the start, what is not written yet, and how it is imported.

exercise.py.start, beside each exercise, is the exercise before anything is written in it. `reset` and `copy`
take it from the lessons that came with this package, so it is there in a wheel, a clone and a learner's copy.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import ModuleType

from ..errors import InvalidRequestError
from .manifest import Lesson, shipped_lessons

_numbers = count()


def starting_text(lesson: Lesson) -> str:
    """Return a lesson's exercise as it is before anything is written in it.

    Raises InvalidRequestError for a lesson that this package doesn't have.
    """
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
    """The stubs of a file; none where it can't be read."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return
    yield from stubs(tree)


def stubs(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Names and lines of the functions that still raise NotImplementedError and nothing else."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    for node in sorted(functions, key=lambda node: node.lineno):
        if ast.unparse(node.body[-1]) == "raise NotImplementedError":
            yield node.name, node.body[-1].lineno


def load_exercise(path: Path) -> ModuleType:
    """Import the file at `path` anew, under a name of its own."""
    name = f"minipaged_exercise_{next(_numbers)}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and Triton look themselves up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
