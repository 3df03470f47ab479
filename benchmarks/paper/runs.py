"""One trace on one system: how the simulator is asked, with the paper's models, servers and lengths."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

from minipaged.simulator.cost_model import PAPER_SERVERS
from minipaged.simulator.model_shape import KNOWN
from minipaged.simulator.simulation import ONE_SAMPLE, DecodingMethod, SimulationResult
from minipaged.simulator.systems import POLICIES, Setting, Sustained, serve, sustained_rate
from minipaged.simulator.workload import (
    WORKLOADS,
    Lengths,
    LogNormal,
    Workload,
    draw_lengths,
    poisson,
    requests_in,
)

from ..shared.sizes import MAX_MODEL_LEN

WIDTHS = (2, 4, 6)
# Seconds a token that a request may take on average: beyond the knee of every curve, whatever the model.
TARGET = 0.25
ORCAS = tuple(POLICIES)
# Section 6.4 gives no lengths of WMT16: sentences of some 40 tokens, and translations of 45, are our guess.
TRANSLATION = Workload(LogNormal(40.0, 0.5), LogNormal(45.0, 0.5))


@dataclass(frozen=True)
class Run:
    """One trace on one system, at a rate, or, without one, at the highest that keeps to the target."""

    system: str
    workload: str
    setting: Setting
    minutes: float
    rate: float | None = None
    method: DecodingMethod = ONE_SAMPLE
    prefix: int = 0


def paper_setting(model: str, **changes: Any) -> Setting:
    """A model on the server that the paper gave it (Table 1)."""
    setting = Setting(shape=KNOWN[model], server=PAPER_SERVERS[model], max_model_len=MAX_MODEL_LEN)
    return replace(setting, **changes)


def run(job: Run) -> SimulationResult | Sustained:
    """Do one run; in a process of its own."""
    trace = partial(_trace, job)
    if job.rate is None:
        return sustained_rate(job.system, trace, job.setting, TARGET, job.method)
    return serve(job.system, poisson(trace(job.rate), job.rate), job.setting, job.method)


def _trace(job: Run, rate: float) -> list[Lengths]:
    """The requests of so many minutes."""
    return list(islice(_lengths(job), requests_in(job.minutes, rate)))


def _lengths(job: Run) -> Iterator[Lengths]:
    if job.workload == "chat":
        return chat_lengths()
    if job.workload == "translation":
        drawn = draw_lengths(TRANSLATION, MAX_MODEL_LEN - job.prefix)
        return (Lengths(prompt + job.prefix, output, job.prefix) for prompt, output, *_ in drawn)
    return draw_lengths(WORKLOADS[job.workload], MAX_MODEL_LEN)


def chat_lengths(seed: int = 0) -> Iterator[Lengths]:
    """Conversations of ShareGPT's turns: the last 1,024 tokens are the prompt, 1,024 the most to answer.

    How many turns came before is not in the paper: up to ten here, all as likely.
    """
    rng = random.Random(seed)
    turns = draw_lengths(WORKLOADS["sharegpt"], MAX_MODEL_LEN, seed)
    while True:
        history = sum(sum(next(turns)[:2]) for _ in range(rng.randint(0, 10)))
        last = next(turns)
        yield Lengths(min(1024, history + last.prompt), min(1024, last.output))
