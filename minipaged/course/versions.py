"""One version of a function that a lesson asks for: the learner's, or the answer key's."""

from __future__ import annotations

import ast
import inspect
import textwrap
from operator import attrgetter
from types import CodeType, ModuleType
from typing import Any

from .manifest import Lesson


def function_of(module: ModuleType, name: str) -> Any:
    """Return the plain function behind a name, also that of a Triton or Numba kernel."""
    member = member_of(module, name)
    return inspect.unwrap(getattr(member, "fn", member))


def member_of(module: ModuleType, name: str) -> Any:
    """Return what a name such as `slot_mapping` or `BlockTable.append` stands for: a function or a kernel.

    A property stands for its function, and a wrapper for what it wraps.
    """
    member = attrgetter(name)(module)
    return inspect.unwrap(getattr(member, "fget", member))


def codes_of(lesson: Lesson, module: ModuleType) -> set[CodeType]:
    """Return the code of the functions that a lesson asks for."""
    functions = [function_of(module, name) for name in lesson.write]
    return {function.__code__ for function in functions if hasattr(function, "__code__")}


def source_of(function: Any) -> str:
    """Return a function's text without its docstring, or a remark if there is no text."""
    try:
        text = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return "# There is no Python source."
    try:
        (node,) = ast.parse(text).body
    except (SyntaxError, ValueError):  # a lambda in the middle of something
        return text.rstrip()
    lines = text.rstrip().splitlines()
    if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None and len(node.body) > 1:
        docstring = node.body[0]
        del lines[docstring.lineno - 1 : docstring.end_lineno]
    return "\n".join(lines)


def are_equal(mine: str, key: str) -> bool:
    """Whether two texts differ in comments and layout only."""
    try:
        return ast.dump(ast.parse(mine)) == ast.dump(ast.parse(key))
    except (SyntaxError, ValueError):
        return mine == key
