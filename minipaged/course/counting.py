"""A pytest plugin that counts the operations of a lesson's functions while its tests run.

    pytest -p minipaged.course.counting --count-into=FILE --same-process lessons/03_allocator --solutions

An operation is one instruction of Python's bytecode. It counts if it runs within a call of a function that
the lesson asks for, in the exercise or in the answer key. Built-in functions and other modules don't count.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from .manifest import Course
from .versions import codes_of

_operations: pytest.StashKey[OperationCounter] = pytest.StashKey()


class OperationCounter:
    """Counts the operations of some functions, and of what they call in their files."""

    def __init__(self) -> None:
        self.num_operations = 0

    @contextmanager
    def watching(self, codes: set[CodeType], files: set[str]) -> Iterator[None]:
        """Count operations in `files`, as far as a function of `codes` runs."""

        def called(frame: FrameType, event: str, argument: Any) -> Any:
            if frame.f_code.co_filename not in files or not _is_within(frame, codes):
                return None
            frame.f_trace_lines, frame.f_trace_opcodes = False, True
            return self._count

        before = sys.gettrace()
        sys.settrace(called)
        try:
            yield
        finally:
            sys.settrace(before)

    def _count(self, frame: FrameType, event: str, argument: Any) -> Any:
        self.num_operations += event == "opcode"
        return self._count


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option that names the file for the number."""
    parser.addoption("--count-into", metavar="FILE", required=True)


def pytest_configure(config: pytest.Config) -> None:
    """Make one counter for all tests."""
    config.stash[_operations] = OperationCounter()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: Any) -> Iterator[None]:
    """Count while a test runs."""
    lesson = Course(item.config.rootpath).find(item.path.parent.name)
    codes = codes_of(lesson, item.funcargs["exercise"])
    # What an exercise takes from the key, such as an error or a method that its lesson left out, counts too.
    keys = {str(importlib.import_module(key).__file__) for key in lesson.keys}
    files = {code.co_filename for code in codes} | keys
    with item.config.stash[_operations].watching(codes, files):
        return (yield)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the number."""
    number = session.config.stash[_operations].num_operations
    Path(session.config.option.count_into).write_text(str(number), encoding="utf-8")


def _is_within(frame: FrameType | None, codes: set[CodeType]) -> bool:
    """Whether a frame, or one that has led to it, runs one of the functions."""
    while frame is not None:
        if frame.f_code in codes:
            return True
        frame = frame.f_back
    return False
