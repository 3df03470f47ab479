"""What the systems are given to do: which requests, how many at once, how often, and for how long."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minipaged.errors import InvalidConfigError

from ..huggingface.workload import RequestSet

LONG_PROMPT, LONG_OUTPUT = 4000, 64  # tokens
SHARED_PREFIX, SHORTEST_TAIL, LONGEST_TAIL, SHARED_OUTPUT = 2000, 16, 64, 64  # tokens
MOST_ALONE = 64  # output tokens of a request that runs alone
LOADING_MINUTES = 1.2  # of all systems together
Make = Callable[[RequestSet, Sequence[int], int], RequestSet]  # of `minipaged bench`'s, token ids and a seed


@dataclass(frozen=True, kw_only=True)
class Load:
    """A load and how often it runs. The minutes are those of one round on two cores with AMX."""

    make: Make
    at_once: int
    rounds: int  # of the quick systems; slow ones run once
    quick_minutes: float
    slow_minutes: float
    prefix_cache: bool = False  # on, where a system has one
    alone: bool = False  # in memory: systems are loaded one after the other, and don't take turns


def _first(count: int) -> Make:
    return lambda requests, _ids, _seed: RequestSet(requests.prompts[:count], requests.output_lengths[:count])


def _alone(requests: RequestSet, _ids: Sequence[int], _seed: int) -> RequestSet:
    lengths = [min(length, MOST_ALONE) for length in requests.output_lengths[:3]]
    return RequestSet(requests.prompts[:3], lengths)


def long_contexts(_requests: RequestSet, token_ids: Sequence[int], seed: int) -> RequestSet:
    """8 requests with prompts of half the default model's limit."""
    rng = random.Random(seed)
    return RequestSet([rng.choices(token_ids, k=LONG_PROMPT) for _ in range(8)], [LONG_OUTPUT] * 8)


def shared_prefix(_requests: RequestSet, token_ids: Sequence[int], seed: int) -> RequestSet:
    """16 requests that begin alike. Another seed is another prefix, so that no round helps the next."""
    rng = random.Random(seed)
    prefix = rng.choices(token_ids, k=SHARED_PREFIX)
    tails = [rng.choices(token_ids, k=rng.randint(SHORTEST_TAIL, LONGEST_TAIL)) for _ in range(16)]
    return RequestSet([prefix + tail for tail in tails], [SHARED_OUTPUT] * 16)


LOADS = {
    "32 requests": Load(make=_first(32), at_once=32, rounds=3, quick_minutes=1.6, slow_minutes=3.6),
    "8 requests": Load(make=_first(8), at_once=8, rounds=5, quick_minutes=0.9, slow_minutes=1.3),
    "one at a time": Load(make=_alone, at_once=1, rounds=3, quick_minutes=0.6, slow_minutes=0.5),
    "long contexts": Load(
        make=long_contexts, at_once=8, rounds=1, quick_minutes=2.8, slow_minutes=4.5, alone=True
    ),
    "shared prefix": Load(
        make=shared_prefix, at_once=16, rounds=1, quick_minutes=0.7, slow_minutes=1.7, prefix_cache=True
    ),
}


def named(text: str) -> list[str]:
    """The loads that a comma-separated option names; all where it is empty. Raises InvalidConfigError."""
    names = [name.strip() for name in text.split(",")] if text else list(LOADS)
    if unknown := [name for name in names if name not in LOADS]:
        raise InvalidConfigError(f"loads must name some of {', '.join(LOADS)}; got {', '.join(unknown)}")
    return names


def expected_minutes(names: Sequence[str], rounds: int | None) -> float:
    """How long all systems take for these loads on that machine. rounds: of all loads, or None."""
    minutes = LOADING_MINUTES * len({(LOADS[name].alone, LOADS[name].prefix_cache) for name in names})
    for name in names:
        load = LOADS[name]
        minutes += load.quick_minutes * (rounds or load.rounds) + load.slow_minutes * (rounds or 1)
    return minutes
