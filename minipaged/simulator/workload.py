"""Requests in order of arrival: how long their prompts and answers are, and when they come.

Lengths are drawn with the paper's published means, or read from a file of your own, one JSON object a line.
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
    """Tokens of one request. The first `prefix` of its prompt are those of all requests of that `group`."""

    prompt: int
    output: int
    prefix: int = 0
    group: str = ""


class LogNormal(NamedTuple):
    """A mean, before anything is cut off, and the standard deviation of the logarithm."""

    mean: float
    spread: float


class Workload(NamedTuple):
    """How prompts and answers of a data set are distributed."""

    prompt: LogNormal
    output: LogNormal


# Within 2,048 tokens the means are the paper's (section 6.1, Figure 11): 161.3 and 338.0, 19.3 and 58.5. It
# gives no spreads, but some follow from its other figures. ShareGPT's answers: in Figure 2, Orca (Max) holds
# 20.4 % tokens and 13.3 % slots that will be used, of 91.1 % that its pieces of 2,048 are. The second is
# E[output^2] / E[output] / 2, which makes 298 tokens; the first is 160 more, the mean prompt, so long answers
# don't follow on long prompts. Alpaca's answers: about the 72.75 requests of Orca (Oracle) in Figure 13b. The
# spread of prompts is a guess.
WORKLOADS = {
    "sharegpt": Workload(LogNormal(167.5, 1.0), LogNormal(360.0, 0.87)),
    "alpaca": Workload(LogNormal(19.3, 0.6), LogNormal(58.5, 0.85)),
}


MOST_REQUESTS = 20_000  # of a trace: minutes at the highest rates could be millions


def draw_lengths(workload: Workload, max_model_len: int, seed: int = 0) -> Iterator[Lengths]:
    """Requests without end: log-normal lengths of 1 token or more, those beyond the limit drawn anew.

    Raises InvalidConfigError where hardly any is within the limit.
    """
    rng = random.Random(seed)
    mu, sigma = zip(*((math.log(mean) - spread**2 / 2, spread) for mean, spread in workload), strict=True)
    num_refused = 0
    while num_refused < 1000:
        prompt = max(1, round(rng.lognormvariate(mu[0], sigma[0])))
        output = max(1, round(rng.lognormvariate(mu[1], sigma[1])))
        num_refused += 1
        if prompt + output <= max_model_len:
            num_refused = 0
            yield Lengths(prompt, output)
    raise InvalidConfigError(f"max_model_len={max_model_len} is too short for requests of this workload")


def read_lengths(path: Path, max_model_len: int) -> list[Lengths]:
    """Lengths from a file of JSON lines: {"prompt": 161, "output": 338}.

    "prefix": 80 says that the prompt begins with 80 tokens that other requests begin with too: those of the
    same "group", a name, which may be left out. Raises InvalidConfigError, which names the line.
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
        found: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise InvalidConfigError(f"{where} is no JSON: {error}") from None
    if not isinstance(found, dict) or not {"prompt", "output"} <= found.keys() <= set(Lengths._fields):
        raise InvalidConfigError(
            f'{where} must be an object with "prompt" and "output", and perhaps "prefix" and "group", '
            f"got {line.strip()[:80]}"
        )
    lengths = Lengths(found["prompt"], found["output"], found.get("prefix", 0), str(found.get("group", "")))
    for name, value, least in (
        ("prompt", lengths.prompt, 1),
        ("output", lengths.output, 1),
        ("prefix", lengths.prefix, 0),
    ):
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
    """(arrival in seconds, lengths) of requests that come at `rate` a second on average.

    Another rate stretches the same trace, so that rates can be compared.
    """
    rng = random.Random(seed)
    now = 0.0
    for each in lengths:
        now += rng.expovariate(1.0)
        yield now / rate, each


def requests_in(minutes: float, rate: float) -> int:
    """As many as come in that time; a hundred at least, lest slow rates be a matter of chance."""
    return max(100, int(min(rate * 60 * minutes, sys.maxsize)))


class Traffic:
    """The requests of so many minutes, at any rate: of a workload by name, or drawn from those of a file.

    Raises InvalidConfigError for a file that isn't one of lengths, or with requests beyond the limit.
    """

    def __init__(self, workload: str, minutes: float, max_model_len: int) -> None:
        self.workload = workload
        self.minutes = minutes
        self.max_model_len = max_model_len
        self._read = [] if workload in WORKLOADS else read_lengths(Path(workload), max_model_len)

    @property
    def shares_prefixes(self) -> bool:
        """Whether some prompts are said to begin alike."""
        return any(each.prefix for each in self._read)

    @property
    def mean_lengths(self) -> tuple[float, float]:
        """Tokens of a prompt and of an answer, on average over a thousand requests."""
        some = self.some(1000)
        return sum(each.prompt for each in some) / len(some), sum(each.output for each in some) / len(some)

    def some(self, count: int) -> list[Lengths]:
        """So many requests, always the same."""
        if self._read:
            return random.Random(0).choices(self._read, k=count)
        return list(islice(draw_lengths(WORKLOADS[self.workload], self.max_model_len), count))

    def requests(self, rate: float) -> list[Lengths]:
        """As many as come in that time, but for MOST_REQUESTS."""
        return self.some(min(requests_in(self.minutes, rate), MOST_REQUESTS))
