"""The figures that need A100s, by simulation: rates, batches and memory of vLLM and of its rivals.

A figure is a function that asks for its runs, which go to several processes, and makes rows of them: what,
the paper's figure, and ours.
Page: docs/paper.md.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import torch

from minipaged.reference.block_table import num_blocks_for
from minipaged.simulator.cost_model import TRANSFER_SECONDS
from minipaged.simulator.model_shape import KNOWN
from minipaged.simulator.processes import Map
from minipaged.simulator.simulation import ONE_SAMPLE, DecodingMethod, Parents
from minipaged.simulator.systems import PAGED, SYSTEM_NAMES, SYSTEMS, Setting, Sustained, serve
from minipaged.simulator.workload import WORKLOADS, draw_lengths, poisson

from ..shared.meters import PeakMemory
from ..shared.report import mebibytes
from ..shared.sizes import BLOCK_SIZES, MAX_MODEL_LEN
from . import published
from .figure import Figure, FigureRow
from .runs import ORCAS, WIDTHS, Run, paper_setting, run


def slots() -> Figure:
    """Table 1, and the bytes of section 3."""
    rows = [
        FigureRow(
            f"{model}: slots",
            f"{number:,}",
            f"{paper_setting(model).num_slots:,}",
            paper_setting(model).num_slots,
        )
        for model, number in published.SLOTS.items()
    ]
    token = KNOWN["opt-13b"].bytes_per_token
    rows.append(FigureRow("opt-13b: KV cache of a token", "800 KB", f"{token:,} bytes", token))
    whole = token * MAX_MODEL_LEN
    rows.append(FigureRow("opt-13b: of 2,048 tokens", "1.6 GB", f"{whole / 1e9:.2f} GB", whole))
    return Figure("Table 1: servers", rows)


def memory_shares(pool: Map, minutes: float) -> Figure:
    """Figure 2: what the KV cache holds while requests wait for room in it."""
    setting = paper_setting("opt-13b")
    systems = (*ORCAS[::-1], PAGED)
    outcomes = pool(run, [Run(system, "sharegpt", setting, minutes, rate=2.0) for system in systems])
    rows = []
    for system, outcome in zip(systems, outcomes, strict=True):
        shares = outcome.memory
        ours = [100 * shares[name] for name in ("tokens", "reserved", "internal")]
        ours.append(100 * (shares["external"] + shares["free"]))
        paper = published.MEMORY_SHARES[system]
        rows.append(FigureRow(SYSTEM_NAMES[system], _shares(paper), _shares(ours), ours))
    remark = "Token states / reserved / internal fragmentation / external and others, in percent of the pool."
    return Figure("Figure 2: what the KV cache holds", rows, remark)


def _shares(parts: Sequence[float | None]) -> str:
    return " / ".join("" if part is None else f"{part:.1f}" for part in parts).rstrip(" /")


def batched(pool: Map, minutes: float) -> Figure:
    """Figure 13: how many requests run at once."""
    setting = paper_setting("opt-13b")
    jobs = [
        Run(system, workload, setting, minutes, published.BATCHED_RATES[workload])
        for workload, systems in published.BATCHED.items()
        for system in systems
    ]
    rows = []
    for job, outcome in zip(jobs, pool(run, jobs), strict=True):
        what = f"{job.workload} at {job.rate:g} requests/s: {SYSTEM_NAMES[job.system]}"
        paper = published.BATCHED[job.workload][job.system]
        rows.append(FigureRow(what, f"{paper:.2f}", f"{outcome.mean_running:.2f}", outcome.mean_running))
    return Figure("Figure 13: requests in a batch, OPT-13B", rows)


def sustained(pool: Map, minutes: float) -> list[Figure]:
    """Figure 12: rates that each system sustains, three models, two data sets."""
    jobs = [
        Run(system, workload, paper_setting(model), minutes)
        for workload in WORKLOADS
        for model in published.SLOTS
        for system in SYSTEMS
    ]
    outcomes = dict(
        zip(((j.workload, j.setting.shape.name, j.system) for j in jobs), pool(run, jobs), strict=True)
    )
    figures = []
    for workload in WORKLOADS:
        for model in published.SLOTS:
            rates = {system: outcomes[workload, model, system] for system in SYSTEMS}
            rows = [_rate_row(system, rate, rates[PAGED], workload) for system, rate in rates.items()]
            curves = {system: sorted(map(tuple, rate.points)) for system, rate in rates.items()}
            figures.append(Figure(f"Figure 12: {workload}, {model}", rows, curves=curves))
    return [*figures, _with_a_free_host(pool, minutes)]


def _with_a_free_host(pool: Map, minutes: float) -> Figure:
    """The panel that is farthest from the paper, once more without what the host spends on each sequence."""
    setting = paper_setting("opt-175b", seconds_per_sequence=0.0)
    systems = (PAGED, *ORCAS)
    rates = list(pool(run, [Run(system, "sharegpt", setting, minutes) for system in systems]))
    rows = [
        _rate_row(system, rate, rates[0], "sharegpt") for system, rate in zip(systems, rates, strict=True)
    ]
    return Figure("Figure 12: sharegpt, opt-175b, with a host that costs nothing a sequence", rows)


def _rate_row(system: str, sustained: Sustained, paged: Sustained, workload: str) -> FigureRow:
    """Return a rate, and the ratio of vLLM's rate to it. The paper gives ranges over its three models."""
    ours = f"{sustained.rate:.2f} requests/s"
    paper = ""
    if system != PAGED:
        ours += f"; vLLM {_times(paged.rate, sustained.rate)}"
        paper = published.RATES_SHAREGPT.get(system, "") if workload == "sharegpt" else ""
        paper = f"vLLM {paper} times" if paper else ""
    return FigureRow(SYSTEM_NAMES[system], paper, ours, sustained.rate)


def _times(rate: float, of: float) -> str:
    return f"{rate / of:.2f} times" if of else "alone"


def _methods(searches: dict[int, list[Parents]]) -> list[tuple[str, DecodingMethod]]:
    """Samples and then beams, by name."""
    samples = [(f"{width} samples", DecodingMethod(width)) for width in WIDTHS]
    return samples + [(f"{width} beams", DecodingMethod(width, tuple(searches[width]))) for width in WIDTHS]


def groups(pool: Map, minutes: float, searches: dict[int, list[Parents]]) -> Figure:
    """Figure 14: several samples or beams a request.

    searches: for each width, whom the beams of a few real searches continue. Orca shares nothing.
    """
    cases = [("one sample", ONE_SAMPLE), *_methods(searches)]
    setting = paper_setting("opt-13b")
    # Some rows are far from the paper. A free host shows how much of that is the host's time per beam.
    cases_and_settings = [(name, method, setting) for name, method in cases]
    free = replace(setting, seconds_per_sequence=0.0)
    cases_and_settings += [(f"{name}, free host", method, free) for name, method in (cases[0], cases[-1])]
    jobs = [
        Run(system, "alpaca", host, minutes / 3, method=method)
        for _, method, host in cases_and_settings
        for system in (PAGED, "orca-oracle")
    ]
    rates = list(pool(run, jobs))
    rows = []
    for (name, _, _), paged, oracle in zip(cases_and_settings, rates[::2], rates[1::2], strict=True):
        paper = published.RATES_GROUPS.get(name, "")
        ours = f"{_times(paged.rate, oracle.rate)} ({paged.rate:.2f} against {oracle.rate:.2f} requests/s)"
        rows.append(FigureRow(name, paper, ours, paged.rate / oracle.rate))
    remark = (
        "A free host spends no time on a sequence; ours spends what the paper's vLLM seems to have spent."
    )
    return Figure("Figure 14: several outputs, against Orca (Oracle), OPT-13B, alpaca", rows, remark)


def saved(pool: Map, minutes: float, searches: dict[int, list[Parents]]) -> Figure:
    """Figure 15: blocks that samples and beams share, at a rate at which the pool is full.

    searches: as for Figure 14.
    """
    setting = paper_setting("opt-13b")
    jobs = [
        Run(PAGED, workload, setting, minutes / 4, rate=published.BATCHED_RATES[workload], method=method)
        for workload in published.BATCHED_RATES
        for _, method in _methods(searches)
    ]
    shares = iter([100 * outcome.saved_by_sharing for outcome in pool(run, jobs)])
    rows = []
    for workload in published.BATCHED_RATES:
        for name in ("parallel sampling", "beam search"):  # in the order of `_methods`
            ours = list(islice(shares, len(WIDTHS)))
            text = ", ".join(f"{share:.1f}" for share in ours)
            rows.append(
                FigureRow(f"{workload}, {name} of 2, 4, 6", published.SAVED[workload, name], text, ours)
            )
    return Figure("Figure 15: blocks saved by sharing, in percent", rows)


def shared_prefix(pool: Map, minutes: float) -> Figure:
    """Figure 16: all prompts begin with the same examples, LLaMA-13B."""
    plain = paper_setting("llama-13b")
    jobs = [
        Run(
            system,
            "translation",
            replace(plain, enable_prefix_caching=system == PAGED),
            minutes,
            prefix=prefix,
        )
        for prefix in published.RATES_PREFIX
        for system in (PAGED, "orca-oracle")
    ]
    rates = list(pool(run, jobs))
    rows = []
    for prefix, paged, oracle in zip(published.RATES_PREFIX, rates[::2], rates[1::2], strict=True):
        ours = f"{_times(paged.rate, oracle.rate)} ({paged.rate:.1f} against {oracle.rate:.1f} requests/s)"
        paper = f"{published.RATES_PREFIX[prefix]} times"
        rows.append(FigureRow(f"a prefix of {prefix} tokens", paper, ours, paged.rate / oracle.rate))
    remark = (
        "The paper gives no lengths of its translations; ours are log-normal with means of 40 and 45 tokens."
    )
    return Figure("Figure 16: a shared prefix, against Orca (Oracle)", rows, remark)


def chat(pool: Map, minutes: float) -> Figure:
    """Figure 17: prompts of up to 1,024 tokens of conversation."""
    setting = paper_setting("opt-13b")
    systems = (PAGED, *ORCAS)
    paged, *others = pool(run, [Run(system, "chat", setting, minutes) for system in systems])
    rows = []
    for system, orca in zip(ORCAS, others, strict=True):
        ours = f"{_times(paged.rate, orca.rate)} ({paged.rate:.2f} against {orca.rate:.2f} requests/s)"
        paper = f"{published.RATE_CHAT:g} times"
        rows.append(FigureRow(f"against {SYSTEM_NAMES[system]}", paper, ours, paged.rate / orca.rate))
    return Figure("Figure 17: chat, OPT-13B", rows)


def block_sizes(pool: Map, minutes: float, slowdown: dict[int, float]) -> Figure:
    """Figure 18b: rates by block size, with a kernel that is as slow on small blocks as ours is here."""
    jobs = [
        Run(PAGED, workload, _with_blocks(size, slowdown), minutes)
        for workload in WORKLOADS
        for size in BLOCK_SIZES
    ]
    rates = iter([sustained.rate for sustained in pool(run, jobs)])
    rows = []
    for workload in WORKLOADS:
        ours = dict(zip(BLOCK_SIZES, islice(rates, len(BLOCK_SIZES)), strict=True))
        best = max(ours.values())
        text = ", ".join(f"{size}: {rate / best:.0%}" for size, rate in ours.items())
        rows.append(FigureRow(workload, published.GOOD_BLOCK_SIZES[workload], text, ours))
    return Figure("Figure 18b: sustained rate by block size, of the best", rows)


def _with_blocks(size: int, slowdown: dict[int, float]) -> Setting:
    return paper_setting("opt-13b", block_size=size, attention_slowdown=slowdown[size])


def swap_or_recompute(pool: Map, minutes: float) -> list[Figure]:
    """Figure 19: a sequence of 256 tokens moved out and back, or computed again, and the whole served."""
    shape = KNOWN["opt-13b"]
    rows = []
    for size in BLOCK_SIZES:
        num_blocks = num_blocks_for(256, size)
        ours = []
        for copies in (1, 2 * shape.num_layers):
            cost = paper_setting("opt-13b", block_size=size, copies_per_block=copies).cost
            ours.append(2000 * num_blocks * cost.swap_seconds)
        again = 1000 * cost.forward_seconds(256, 1, 256, 256 * 256)
        text = (
            f"{ours[0]:.0f} ms in one piece a block, {ours[1]:.0f} ms in {copies}; recomputed {again:.0f} ms"
        )
        rows.append(FigureRow(f"blocks of {size}", "", text, [*ours, again]))
    remark = (
        f"A transfer starts {1e6 * TRANSFER_SECONDS:.0f} us late, so small ones are slow. The paper's blocks "
        "lay in one tensor a layer for K and one for V, 80 transfers each; ours are one piece."
    )
    return [Figure("Figure 19a: 256 tokens out and in, or recomputed", rows, remark), _served(pool, minutes)]


def _served(pool: Map, minutes: float) -> Figure:
    """Figure 19b: the rate sustained either way."""
    host = 12 << 30
    ways = {"swap": host, "recompute": 0}
    jobs = [
        Run(PAGED, "sharegpt", _swapping(size, host_bytes), minutes)
        for size in BLOCK_SIZES
        for host_bytes in ways.values()
    ]
    rates = list(pool(run, jobs))
    rows = []
    for size, swap, again in zip(BLOCK_SIZES, rates[::2], rates[1::2], strict=True):
        paper = "comparable" if 16 <= size <= 64 else ""
        ours = f"swap {swap.rate:.2f}, recompute {again.rate:.2f} requests/s"
        rows.append(FigureRow(f"blocks of {size}", paper, ours, [swap.rate, again.rate]))
    remark = "With 80 transfers a block, as in the paper's layout."
    return Figure("Figure 19b: rate with swap and with recomputation, OPT-13B, sharegpt", rows, remark)


def _swapping(size: int, host_bytes: int) -> Setting:
    copies = 2 * KNOWN["opt-13b"].num_layers
    return paper_setting("opt-13b", block_size=size, host_bytes=host_bytes, copies_per_block=copies)


def scale(pool: Map, counts: Sequence[int] = (10_000, 100_000, 1_000_000)) -> Figure:
    """What simulating costs: requests of Alpaca's lengths at 28 a second, on OPT-13B's server."""
    rows = []
    for count, (seconds, peak) in zip(counts, pool(_timed, counts), strict=True):
        ours = (
            f"{seconds:,.0f} s of one core, {1e6 * seconds / count:.0f} us a request, {mebibytes(peak)} MiB"
        )
        rows.append(FigureRow(f"{count:,} requests", "", ours, [seconds, peak]))
    return Figure("What simulating costs", rows)


def _timed(count: int) -> tuple[float, int | None]:
    """Seconds of processor time for so many requests, and the most memory that the process had."""
    setting = paper_setting("opt-13b")
    arrivals = poisson(islice(draw_lengths(WORKLOADS["alpaca"], MAX_MODEL_LEN), count), 28.0)
    with PeakMemory(torch.device("cpu")) as memory:
        start = time.process_time()
        serve(PAGED, arrivals, setting)
        seconds = time.process_time() - start
    return seconds, memory.peak
