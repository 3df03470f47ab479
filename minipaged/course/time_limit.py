"""Break off a learner's code that runs for too long: a whole test, or one call.

There is no limit on a system without interval timers, nor outside the main thread.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from types import FrameType

# Code that waits uses no processor time. It is broken off after this many times its limit.
_WAITING = 3


class TimeLimitError(BaseException):
    """A time limit has passed. Not an Exception: a learner's `except Exception` must not swallow it."""


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise TimeLimitError in the code inside after `seconds` of this thread's processor time.

    Other processes on a busy machine don't count against it.
    """
    began, used_before = time.monotonic(), time.thread_time()

    def look(frame: FrameType | None) -> None:
        waited = time.monotonic() - began >= _WAITING * seconds
        if waited or time.thread_time() - used_before >= seconds:
            raise TimeLimitError(seconds)

    with _alarm(seconds, 1, look):
        yield


@contextmanager
def call_time_limit(seconds: int, files: Container[str]) -> Iterator[None]:
    """Raise TimeLimitError in a call of code in `files` that runs for `seconds`.

    A timer looks once per second whether that call still runs. Time in the model itself doesn't count.
    """
    running: FrameType | None = None
    ticks = 0

    def look(frame: FrameType | None) -> None:
        nonlocal running, ticks
        outermost = None
        while frame is not None:
            outermost = frame if frame.f_code.co_filename in files else outermost
            frame = frame.f_back
        ticks = ticks + 1 if outermost is not None and outermost is running else 0
        running = outermost
        if ticks >= seconds:
            raise TimeLimitError(seconds)

    with _alarm(1, 1, look):
        yield


@contextmanager
def _alarm(first: float, interval: float, call: Callable[[FrameType | None], None]) -> Iterator[None]:
    """Call `call` with the running frame after `first` seconds, then every `interval` unless that is 0."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, lambda signum, frame: call(frame))
    outer = signal.setitimer(signal.ITIMER_REAL, first, interval)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *outer)  # a limit around this one goes on
