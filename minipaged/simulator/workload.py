"""Requests in order of arrival: how long their prompts and answers are, and when they come.

Lengths are drawn with the paper's published means, or read from your own file, one JSON object per line.
Arrivals are a Poisson process, as in the paper (section 6.1).
Page: docs/paper.md.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from ..config import is_integer
from ..errors import InvalidConfigError


class Lengths(NamedTuple):
    """Tokens of one request. All requests of a `group` begin with the same tokens, `prefix` of them here."""

    prompt: int
    output: int
    prefix: int = 0
    group: str = ""


class LogNormal(NamedTuple):
    """A mean, before long draws are refused, and the standard deviation of the logarithm."""

    mean: float
    spread: float


class Workload(NamedTuple):
    """The distributions of the lengths of a data set's prompts and answers."""

    prompt: LogNormal
    output: LogNormal


# Within 2,048 tokens the means are the paper's (section 6.1, Figure 11): 161.3 and 338.0, 19.3 and 58.5. The
# paper gives no spreads, but some follow from its other figures.
# ShareGPT's answers: in Figure 2 the pieces of Orca (Max), 2,048 slots each, are 91.1 % of the memory. Tokens
# fill 20.4 %, and 13.3 % will be used later. The 13.3 % make 298 tokens per piece, which must be
# E[output^2] / E[output] / 2. The 20.4 % make 160 more, the mean prompt: answers don't depend on prompts.
# Alpaca's answers: Orca (Oracle) runs about 72.75 requests at once in Figure 13b. The spread of prompts is a
# guess.
WORKLOADS = {
    "sharegpt": Workload(LogNormal(167.5, 1.0), LogNormal(360.0, 0.87)),
    "alpaca": Workload(LogNormal(19.3, 0.6), LogNormal(58.5, 0.85)),
}


MOST_REQUESTS = 20_000  # of a trace: minutes at the highest rates could be millions


def draw_lengths(workload: Workload, max_model_len: int, seed: int = 0) -> Iterator[Lengths]:
    """Draw requests without end: log-normal lengths of 1 token or more, drawn anew beyond the limit.

    Raises InvalidConfigError if hardly any request is within the limit.
    """
    rng = random.Random(seed)
    parameters = [(math.log(mean) - spread**2 / 2, spread) for mean, spread in workload]
    num_refused = 0
    while num_refused < 1000:
        prompt, output = (max(1, round(rng.lognormvariate(mu, sigma))) for mu, sigma in parameters)
        num_refused += 1
        if prompt + output <= max_model_len:
            num_refused = 0
            yield Lengths(prompt, output)
    raise InvalidConfigError(f"max_model_len={max_model_len} is too short for requests of this workload")


def read_lengths(path: Path, max_model_len: int) -> list[Lengths]:
    """Read lengths from a file of JSON lines: {"prompt": 161, "output": 338}.

    "prefix": 80 says that the prompt begins with 80 tokens that it shares with other requests of the same
    "group". The group is a name, and may be left out. Raises InvalidConfigError, which names the line.
    """
    try:
        if path.is_char_device():
            raise InvalidConfigError(f"workload={str(path)!r} is a device, which may never end")
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfigError(f"workload={str(path)!r} can't be read: {error}") from None
    lengths = [
        _parse(line, f"{path}, line {number}", max_model_len)
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not lengths:
        raise InvalidConfigError(f"workload={str(path)!r} has no lines")
    return lengths


def _parse(line: str, where: str, max_model_len: int) -> Lengths:
    try:
        entry: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise InvalidConfigError(f"{where} is no JSON: {error}") from None
    if not isinstance(entry, dict) or not {"prompt", "output"} <= entry.keys() <= set(Lengths._fields):
        raise InvalidConfigError(
            f'{where} must be an object with "prompt" and "output", and perhaps "prefix" and "group", '
            f"got {line.strip()[:80]}"
        )
    lengths = Lengths(entry["prompt"], entry["output"], entry.get("prefix", 0), str(entry.get("group", "")))
    for name, least in (("prompt", 1), ("output", 1), ("prefix", 0)):
        value = getattr(lengths, name)
        if not is_integer(value) or value < least:
            raise InvalidConfigError(f"{where}: {name} must be an integer of {least} or more, got {value!r}")
    if lengths.prefix > lengths.prompt:
        raise InvalidConfigError(f"{where}: prefix={lengths.prefix} is more than prompt={lengths.prompt}")
    if lengths.prompt + lengths.output > max_model_len:
        raise InvalidConfigError(
            f"{where}: {lengths.prompt} + {lengths.output} tokens are more than max_model_len={max_model_len}"
        )
    return lengths


def poisson(lengths: Iterable[Lengths], rate: float, seed: int = 0) -> Iterator[tuple[float, Lengths]]:
    """Yield (arrival in seconds, lengths) of requests that come at `rate` per second on average.

    Another rate stretches the same trace, so that rates can be compared.
    """
    rng = random.Random(seed)
    now = 0.0
    for request in lengths:
        now += rng.expovariate(1.0)
        yield now / rate, request


def requests_in(minutes: float, rate: float) -> int:
    """Return how many requests come in that time, but at least 100: fewer would make slow rates random."""
    return max(100, int(min(rate * 60 * minutes, sys.maxsize)))


class Traffic:
    """The requests of some minutes at any rate. `workload` is a name of WORKLOADS, or a file to draw from.

    Raises InvalidConfigError if the file holds no lengths, or a request beyond the limit.
    """

    def __init__(self, workload: str, minutes: float, max_model_len: int) -> None:
        self.workload = workload
        self.minutes = minutes
        self.max_model_len = max_model_len
        self._read = [] if workload in WORKLOADS else read_lengths(Path(workload), max_model_len)

    @property
    def shares_prefixes(self) -> bool:
        """Whether some prompts are said to begin alike."""
        return any(lengths.prefix for lengths in self._read)

    @property
    def mean_lengths(self) -> tuple[float, float]:
        """Tokens of a prompt and of an answer, on average over 1,000 requests."""
        prompts, outputs, _, _ = zip(*self.draw(1000), strict=True)
        return sum(prompts) / 1000, sum(outputs) / 1000

    def draw(self, count: int) -> list[Lengths]:
        """Return `count` requests, the same in every call."""
        if self._read:
            return random.Random(0).choices(self._read, k=count)
        return list(islice(draw_lengths(WORKLOADS[self.workload], self.max_model_len), count))

    def requests(self, rate: float) -> list[Lengths]:
        """Return the requests that come in that time, at most MOST_REQUESTS."""
        return self.draw(min(requests_in(self.minutes, rate), MOST_REQUESTS))
