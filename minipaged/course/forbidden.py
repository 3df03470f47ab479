"""Know what an exercise does to the process that grades it: files, processes, and the grader's own code.

    what                                  noticed by                       where
    files, processes, gc, code of others  an audit event of Python         `_fault` here
    replaced functions and modules        a seal over their names          seal.py
    threads that go on                    a noted Thread.start             `_Watch` here
    the answer key                        bodies that raise                withheld.py
    the end, output, memory, records      the process that started it      grading_process.py
    skip, exit and so on in an answer     the exception                    `_guard` in grader.py
    files that Python runs unasked        their names                      options.py

This keeps no native code out: see docs/lessons.md.
"""

from __future__ import annotations

import importlib
import os
import platform
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any
from unittest.mock import patch

from .manifest import MANIFEST, PROGRESS, Lesson
from .seal import first_change, seal

_PROCESSES = (
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.fork",
    "os.forkpty",
    "subprocess.Popen",
)
_WRITES = os.O_WRONLY | os.O_RDWR
_FILES_OF_COURSE = (PROGRESS, MANIFEST, "pytest.ini", "conftest.py")
_MAX_DEPTH = 20_000  # calls within calls


class ForbiddenError(BaseException):
    """An exercise did what no answer needs. Not an Exception: an exercise's `except` must not swallow it.

    line: of the exercise, if it is known.
    """

    def __init__(self, fault: str, line: int | None = None) -> None:
        self.line = line
        super().__init__(fault)


_judge: Callable[[str, tuple[Any, ...]], None] | None = None
_is_installed = False


class _Watch:
    """What one exercise has done so far while its lesson is graded."""

    def __init__(self, lesson: Lesson, tests: ModuleType) -> None:
        library, root = _library_folders(), lesson.root.resolve()
        tests_of_all = [str(path) for path in root.glob("*/test_*.py")]
        self._keys = {Path(str(importlib.import_module(key).__file__)).resolve() for key in lesson.keys}
        self._trusted = (*_package_folders(), *library, *tests_of_all, platform.__file__)
        self._kept = (*library, *tests_of_all, *(str(root / name) for name in _FILES_OF_COURSE))
        self._seal = seal(tests)
        self._start = threading.Thread.start
        self._threads: list[threading.Thread] = []  # of the exercise; the library may keep some of its own
        self._faults: list[ForbiddenError] = []

    def judge(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Raise ForbiddenError if an audit event is forbidden and comes from the exercise."""
        fault = _fault(event, arguments, self._keys, self._kept)
        if fault and (frame := _frame_of_exercise(sys._getframe(2), self._trusted)) is not None:
            self._faults.append(ForbiddenError(fault, frame.f_lineno))
            raise self._faults[-1]

    def start_thread(self, thread: threading.Thread) -> None:
        """Start a thread, and remember it if the exercise asks for it."""
        if _frame_of_exercise(sys._getframe(2), self._trusted) is not None:
            self._threads.append(thread)
        self._start(thread)

    def first(self) -> ForbiddenError | None:
        """Return the first thing that was forbidden, or None."""
        try:
            changed = first_change(self._seal)
        except Exception:  # what this needs was replaced
            changed = "a function of Python"
        if changed:
            self._faults.append(ForbiddenError(f"replaced {changed}, a part of the grader"))
        elif any(map(_is_running, self._threads)):
            self._faults.append(ForbiddenError("left a thread behind that goes on after the test"))
        return self._faults[0] if self._faults else None


@contextmanager
def watched(lesson: Lesson, tests: ModuleType) -> Iterator[Callable[[], ForbiddenError | None]]:
    """Watch the exercise in here. Yields a function that returns the first forbidden thing it did, or None.

    tests: the module whose tests grade it.
    """
    global _judge, _is_installed
    watch = _Watch(lesson, tests)
    if not _is_installed:  # an audit hook stays for good
        sys.addaudithook(lambda event, arguments: _judge(event, arguments) if _judge is not None else None)
        _is_installed = True
    _judge = watch.judge
    try:
        with (
            _bounded_recursion(),
            patch.object(threading.Thread, "start", lambda thread: watch.start_thread(thread)),
        ):
            yield watch.first
    finally:
        _judge = None


@contextmanager
def _bounded_recursion() -> Iterator[None]:
    """Let an exercise raise the limit of recursion, but not to a depth that fills the memory."""
    before, set_limit = sys.getrecursionlimit(), sys.setrecursionlimit
    try:
        with patch.object(sys, "setrecursionlimit", lambda limit: set_limit(min(limit, _MAX_DEPTH))):
            yield
    finally:
        set_limit(before)


def _fault(event: str, arguments: tuple[Any, ...], keys: set[Path], kept: tuple[str, ...]) -> str:
    """Say what an audit event would do that no answer needs; "" for all others."""
    if event.startswith("gc.get_"):
        return f"called {event}, which finds the grader's own objects"
    if event == "object.__setattr__" and arguments[1] == "__code__":
        return f"replaced the code of {getattr(arguments[0], '__qualname__', arguments[0])}"
    if event in _PROCESSES:
        return "started another process"
    if event in ("os.kill", "os.killpg"):
        return "sent a signal"
    if event in ("os.remove", "os.rename", "os.truncate"):
        changed = [os.path.realpath(path) for path in arguments[:2] if isinstance(path, str)]
        return next((f"changed {path}" for path in changed if path.startswith(kept)), "")
    if event == "open" and isinstance(arguments[0], str):
        path = os.path.realpath(arguments[0])
        if arguments[2] & _WRITES and path.startswith(kept):
            return f"wrote to {path}"
        if _is_of_key(Path(path), keys):
            return f"read {path}, a file of the answer key"
    return ""


def _is_of_key(path: Path, keys: set[Path]) -> bool:
    """Whether a file holds the text of a key, or its bytecode."""
    folder = path.parent.parent if path.parent.name == "__pycache__" else path.parent
    return folder / f"{path.name.partition('.')[0]}.py" in keys


def _frame_of_exercise(frame: FrameType | None, trusted: tuple[str, ...]) -> FrameType | None:
    """Return the frame of the exercise that makes a call, through the standard library at most, or None.

    The files that an import of the library opens don't count.
    """
    standard = (sysconfig.get_path("stdlib"), "<frozen ")
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(trusted) or _imports_library(frame):
            return None
        if not file.startswith(standard):
            return frame
        frame = frame.f_back
    return None


def _imports_library(frame: FrameType) -> bool:
    """Whether a frame is Python's import of a module of the library, under its own name."""
    is_import = frame.f_code.co_name == "_find_and_load"
    return is_import and str(frame.f_locals["name"]).partition(".")[0] == "minipaged"


def _library_folders() -> tuple[str, ...]:
    """Return the folders of the library's code."""
    import minipaged.kernels
    import minipaged.reference

    packages = (minipaged, minipaged.kernels, minipaged.reference)
    return tuple(f"{Path(folder).resolve()}{os.sep}" for package in packages for folder in package.__path__)


def _package_folders() -> tuple[str, ...]:
    """Return the folders of installed packages."""
    return sysconfig.get_path("purelib"), sysconfig.get_path("platlib")


def _is_running(thread: threading.Thread) -> bool:
    """Whether a thread goes on; one that is about to end is waited for."""
    until = time.monotonic() + 0.5
    while thread.is_alive() and time.monotonic() < until:
        time.sleep(0.01)
    return thread.is_alive()
