"""Withhold the answer key: while a lesson is graded, the bodies that it asks for raise in the library.

So an exercise may import from the library what it likes, and still has to write its own answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import CodeType, FunctionType
from typing import Any, NoReturn
from unittest.mock import patch

from .manifest import Lesson
from .versions import member_of


class WithheldError(Exception):
    """The library's own answer was called while its lesson is graded."""


class _WithheldKernel:
    """Stands where the key has a compiled kernel."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getitem__(self, grid: Any) -> NoReturn:
        raise WithheldError(self._name)

    def __call__(self, *arguments: Any, **options: Any) -> NoReturn:
        raise WithheldError(self._name)


@contextmanager
def withheld(lesson: Lesson) -> Iterator[None]:
    """Let each function of the key that the lesson asks for raise WithheldError in here."""
    key = lesson.answer()
    with ExitStack() as undone:
        for name in lesson.write:
            function = member_of(key, name)
            if isinstance(function, FunctionType):
                # The code is replaced, not the name: whoever holds the function holds it without its body.
                undone.callback(setattr, function, "__code__", function.__code__)
                function.__code__ = _refusal(name, function.__code__)
            else:
                undone.enter_context(patch.object(key, name, _WithheldKernel(name)))
        yield


def _refusal(name: str, body: CodeType) -> CodeType:
    """Return code that raises, to stand in place of `body`."""

    def refuse(*arguments: object, **options: object) -> None:
        from minipaged.course.withheld import WithheldError  # the code runs with the globals of the key

        raise WithheldError("name")

    # Code can have no closure here, so the name goes in as a constant.
    code = refuse.__code__
    constants = tuple(name if constant == "name" else constant for constant in code.co_consts)
    return code.replace(co_consts=constants, co_name=body.co_name, co_qualname=body.co_qualname)
