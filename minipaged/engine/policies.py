"""Who starts next, and who gives way: the one part of scheduling that is a matter of taste.

A policy changes how long each request waits, never its tokens. Give one to `LLM(policy=...)`.
Page: docs/tutorials/own_policy.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any

from ..errors import PolicyError, one_line
from .request import Request

_age = attrgetter("arrival_time")


class Policy:
    """The lowest rank goes first. A policy of your own overrides `rank`, or `order` and `victim`.

    The scheduler starts requests in the order of the line until one doesn't fit. A request that gives way
    joins the line again. Nothing keeps a policy from letting a request wait for ever (starvation).
    """

    reads_priority = False  # if False, the engine refuses requests with a priority: nobody would look at it

    def rank(self, request: Request) -> Any:
        """Anything that can be compared with another rank. Of equal ranks the older goes first."""
        raise NotImplementedError(f"{type(self).__name__} must define rank, or order and victim")

    def order(self, requests: list[Request]) -> Iterable[Request]:
        """All `requests`, which wait or are swapped out, each once: the next to start first."""
        return sorted(sorted(requests, key=_age), key=self.rank)  # sorting is stable: by rank, then by age

    def victim(self, running: list[Request]) -> Request:
        """The one of the `running` requests, at least two, that gives its blocks up."""
        # Reversed, since `max` returns the first of equals: of two that arrived at once the later gives way.
        return max(reversed(running), key=lambda request: (self.rank(request), request.arrival_time))


class FirstComeFirstServed(Policy):
    """The oldest goes first and the youngest gives way. Nobody waits for ever."""

    def rank(self, request: Request) -> Any:
        """The same for all: age alone decides."""
        return 0


class ShortestFirst(Policy):
    """The shortest prompt goes first and the longest gives way. A long one can wait for ever."""

    def rank(self, request: Request) -> Any:
        """Tokens of the prompt."""
        return len(request.prompt_token_ids)


class Priority(Policy):
    """The lowest `priority` goes first, as in vLLM. A higher one can wait for ever."""

    reads_priority = True

    def rank(self, request: Request) -> Any:
        """`SamplingParams.priority`."""
        return request.params.priority


def line_of(policy: Policy, requests: list[Request]) -> list[Request]:
    """The requests in the policy's order. Raises PolicyError unless it names each of them once."""
    try:
        line = list(policy.order(list(requests)))
    except Exception as error:
        raise _fault(policy, error) from error
    if len(line) != len(requests) or set(map(id, line)) != set(map(id, requests)):
        raise PolicyError(f"{type(policy).__name__}.order must return each of {len(requests)} requests once")
    return line


def victim_of(policy: Policy, running: list[Request]) -> Request:
    """The request that gives way. Raises PolicyError unless it is running."""
    try:
        victim = policy.victim(list(running))
    except Exception as error:
        raise _fault(policy, error) from error
    if not any(victim is request for request in running):
        raise PolicyError(f"{type(policy).__name__}.victim must return one of the running requests")
    return victim


def _fault(policy: Policy, error: Exception) -> PolicyError:
    return PolicyError(f"{type(policy).__name__} raised {type(error).__name__}: {one_line(error)}")
