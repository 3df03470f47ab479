"""`minipaged bench paper`: each result of the paper's evaluation, theirs beside ours.

What a small model can show is measured here and first, while nothing else runs; what needs A100s is then
simulated, several runs at a time.
Page: docs/paper.md.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ..errors import InvalidConfigError
from ..llm import LLM
from ..paper import measured, simulated
from ..paper.figure import Figure
from ..paper.runs import TARGET, WIDTHS
from . import bench_report, plots
from .bench_sharing import record_parents
from .console import DataConsole
from .processes import Map, processes

BEAM_TOKENS = 64  # of the searches whose beams are replayed
FIGURES = ("claims", "example", "waste", "scale", "table1", "2", "12", "13", "14", "16", "17", "18", "19")


def bench_paper(args: argparse.Namespace) -> dict[str, Any]:
    """Measure what `args.figures` asks for, print it, write it as JSON, and return it."""
    output = bench_report.output_file(args.output)
    plot = plots.plot_file(args.plot)
    wanted = _wanted(args.figures)
    if not 0 < args.minutes < math.inf or args.num_requests < 2 or args.processes < 1:
        raise InvalidConfigError(
            "minutes must be above 0 and finite, num_requests at least 2, processes at least 1"
        )
    if plot is not None and "12" not in wanted:
        raise InvalidConfigError("plot draws the rates of figure 12, which figures leaves out")
    console = DataConsole()
    settings = {"minutes": args.minutes, "num_requests": args.num_requests, "model": args.model}
    results = bench_report.head(settings, torch.get_num_threads())
    kept = _kept(output, wanted) if args.update else []
    figures: list[dict[str, Any]] = []
    with processes(args.processes) as pool:
        for name, make in _makers(args, pool):
            if name in wanted:
                start = time.perf_counter()
                with console.status(f"{name} ..."):
                    made = make()
                seconds = round(time.perf_counter() - start, 1)
                for figure in made if isinstance(made, list) else [made]:
                    _print(console, figure)
                    rows = [row._asdict() for row in figure.rows]
                    head = {"name": name, "date": results["date"], "seconds": seconds}
                    figures.append(head | asdict(figure) | {"rows": rows})
    results["figures"] = sorted(kept + figures, key=lambda figure: FIGURES.index(figure["name"]))
    bench_report.write_results(console, output, results)
    if plot is not None:
        plots.draw_rates(plot, {each["title"]: each["curves"] for each in figures if each["curves"]}, TARGET)
    return results


def _kept(output: Path, wanted: set[str]) -> list[dict[str, Any]]:
    """The figures of an earlier run that this one doesn't measure again."""
    try:
        figures = json.loads(output.read_text(encoding="utf-8"))["figures"]
        return [figure for figure in figures if figure["name"] not in wanted]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InvalidConfigError(f"output={str(output)!r} holds no figures to keep: {error!r}") from None


def _wanted(names: str) -> set[str]:
    wanted = set(FIGURES) if names == "all" else {name.strip() for name in names.split(",")}
    if unknown := wanted - set(FIGURES):
        raise InvalidConfigError(f"figures={sorted(unknown)[0]!r} is none of all, {', '.join(FIGURES)}")
    return wanted


def _makers(args: argparse.Namespace, pool: Map) -> list[tuple[str, Callable[[], Figure | list[Figure]]]]:
    """What makes each figure, in the order in which they are made."""
    times: dict[int, float] = {}

    def kernel() -> list[Figure]:
        times.update(measured.kernel_times())
        rates = simulated.block_sizes(pool, args.minutes, measured.slowdown(times))
        return [measured.kernel_overhead(times), rates]

    def groups() -> list[Figure]:
        llm = LLM(args.model, enable_prefix_caching=False)
        searches = {width: record_parents(llm, width, BEAM_TOKENS) for width in WIDTHS}
        return simulated.groups(pool, args.minutes, searches)

    return [
        ("claims", lambda: measured.claims(args.model, args.num_requests)),
        ("example", measured.simple_example),
        ("waste", lambda: measured.expected_waste(10_000)),
        ("18", kernel),
        ("scale", lambda: simulated.scale(pool)),
        ("table1", simulated.slots),
        ("2", lambda: simulated.memory_shares(pool, args.minutes)),
        ("12", lambda: simulated.sustained(pool, args.minutes)),
        ("13", lambda: simulated.batched(pool, args.minutes)),
        ("14", groups),
        ("16", lambda: simulated.shared_prefix(pool, args.minutes)),
        ("17", lambda: simulated.chat(pool, args.minutes)),
        ("19", lambda: simulated.swap_or_recompute(pool, args.minutes)),
    ]


def _print(console: DataConsole, figure: Figure) -> None:
    table = bench_report.empty_table(figure.title)
    table.add_column("")
    table.add_column("paper")
    table.add_column("here")
    for row in figure.rows:
        table.add_row(row.what, row.paper, row.ours)
    console.print(table)
    if figure.remark:
        console.print(figure.remark, style="dim")
    console.print()
