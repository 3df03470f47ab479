"""Where requests enter: any thread adds and aborts here, and the engine takes it in at its next step.

Two facts are changed together, under one lock: which requests are unfinished, and in which order callers
added and aborted them. So an abort never overtakes the request that it is meant for.
"""

from __future__ import annotations

from collections import deque
from threading import RLock
from typing import NamedTuple

from ..errors import InvalidRequestError
from .request import Request


class Event(NamedTuple):
    """What a caller asked for: "add" or "abort" of a request."""

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
