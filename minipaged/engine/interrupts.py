"""Let Ctrl-C wait until a piece of bookkeeping is whole.

Python raises KeyboardInterrupt between any two instructions of the main thread. Inside a step that would
leave a pool block that is off the free stack and in no table, or one that is counted twice.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Put off the first Ctrl-C of the main thread until the end of the with body.

    A second Ctrl-C is not put off, so that code which hangs can be stopped. The caller must then repair its
    state. Within another such body this does nothing: the outer one waits.
    """
    handler = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()  # the only one that Python interrupts
    if not is_main or not callable(handler) or isinstance(handler, _Waiting):
        yield
        return
    waiting = _Waiting(handler)
    signal.signal(signal.SIGINT, waiting)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if waiting.has_come:
            handler(signal.SIGINT, None)


class _Waiting:
    """A handler that notes the first interrupt, and hands the second one on."""

    def __init__(self, handler: Callable[[int, FrameType | None], object]) -> None:
        self._handler = handler
        self.has_come = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        second, self.has_come = self.has_come, not self.has_come
        if second:
            self._handler(number, frame)
