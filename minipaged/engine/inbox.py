"""Let the world outside wait while a step runs: other threads, which add and abort requests, and Ctrl-C.

Any thread may add and abort. The engine takes this in at its next step. Two facts are changed together, under
one lock: which requests are unfinished, and in which order callers added and aborted them. So an abort never
overtakes the request that it is meant for.

Python raises KeyboardInterrupt between any two instructions of the main thread. Inside a step that would
leave a pool block that is off the free stack and in no table, or one that is counted twice.
"""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock
from types import FrameType
from typing import NamedTuple

from ..errors import InvalidRequestError
from .request import Request


class Event(NamedTuple):
    """A caller's wish: "add" or "abort" a request."""

    kind: str
    request: Request


class Inbox:
    """The unfinished requests by id, and the events that the engine has not taken in yet."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._requests: dict[str, Request] = {}
        self._events: deque[Event] = deque()

    def __len__(self) -> int:
        """The number of unfinished requests, without those that were aborted."""
        return len(self._requests)

    def __contains__(self, request_id: str) -> bool:
        """Whether the id belongs to an unfinished request."""
        return request_id in self._requests

    @property
    def is_empty(self) -> bool:
        """Whether no request is unfinished and no event is left."""
        return not (self._requests or self._events)

    def refuse(self, request_id: str, max_num_unfinished: int) -> None:
        """Raise InvalidRequestError for an id in use, and for one request too many."""
        if request_id in self:
            raise InvalidRequestError(f"request_id {request_id!r} is in use by an unfinished request")
        if len(self) >= max_num_unfinished:
            raise InvalidRequestError(
                f"{len(self)} requests are unfinished: max_num_unfinished={max_num_unfinished} allows no "
                "more, wait until one ends"
            )

    def add(self, request: Request) -> None:
        """Let a request enter. Its id must be free."""
        with self._lock:
            self._requests[request.request_id] = request
            self._events.append(Event("add", request))

    def abort(self, request_id: str) -> None:
        """Ask for the end of a request, whose id is free from now on. Unknown ids are ignored."""
        with self._lock:
            request = self._requests.pop(request_id, None)
            if request is not None:
                self._events.append(Event("abort", request))

    def take(self) -> Event | None:
        """Take out the oldest event, or None where none is left."""
        with self._lock:
            return self._events.popleft() if self._events else None

    def end(self, request: Request) -> None:
        """Free the id of a request that has ended. Another request that has the id by now keeps it."""
        with self._lock:
            if self.is_current(request):
                del self._requests[request.request_id]

    def is_current(self, request: Request) -> bool:
        """Whether this very request is unfinished, and nobody has aborted it."""
        return self._requests.get(request.request_id) is request

    def take_all(self) -> list[Request]:
        """Take out all events, and return every request that is unfinished or was named by an event."""
        with self._lock:
            named = [event.request for event in self._events]
            self._events.clear()
            return list(dict.fromkeys([*self._requests.values(), *named]))


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
