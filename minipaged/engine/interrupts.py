"""Let Ctrl-C wait until a piece of bookkeeping is whole.

Python raises KeyboardInterrupt between any two instructions of the main thread. Inside a step that would
leave a block taken from the free stack and not yet named by a table, or counted twice.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Put off the first Ctrl-C of the main thread until the end of the block; a second one comes at once.

    The second is for code that never ends. Whoever is interrupted by it has to make its state whole again.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield  # Python interrupts only its main thread
        return
    waiting: list[FrameType | None] = []

    def wait(number: int, frame: FrameType | None) -> None:
        if waiting:
            handler(number, frame)
        waiting.append(frame)

    signal.signal(signal.SIGINT, wait)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if waiting:
            handler(signal.SIGINT, waiting[0])
