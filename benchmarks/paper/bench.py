"""`minipaged bench paper`: each result of the paper's evaluation, theirs beside ours.

The results of a small model are measured here, and first, while nothing else runs. Those of A100s are then
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
from functools import cache
from pathlib import Path
from typing import Any

from minipaged.cli.bench import load_benchmarks
from minipaged.errors import InvalidConfigError
from minipaged.llm import LLM
from minipaged.simulator.plots import draw_rates, plot_file
from minipaged.simulator.processes import Map, processes, usable_cores
from minipaged.simulator.simulation import Parents
from minipaged.terminal.console import DataConsole
from minipaged.terminal.results import empty_table, output_file, write_results

from ..shared.report import add_output_argument, head
from .beams import record_parents
from .figure import Figure
from .runs import TARGET, WIDTHS

BEAM_TOKENS = 64  # of the searches whose beams are replayed
FIGURES = (
    *("claims", "example", "waste", "scale", "table1"),
    *("2", "12", "13", "14", "15", "16", "17", "18", "19"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose the figures and their size."""
    parser.add_argument("--figures", default="all", metavar="NAMES", help="such as 2,12,claims")
    parser.add_argument("--update", action="store_true", help="keep the other figures of the output file")
    parser.add_argument("--minutes", type=float, default=10, metavar="M", help="of each simulated trace")
    parser.add_argument("--num-requests", type=int, default=32, metavar="N", help="to the real model")
    parser.add_argument("--model", default="smollm2-135m", help="a Hugging Face id or a folder")
    add_output_argument(parser, "paper")
    parser.add_argument("--processes", type=int, default=usable_cores(), metavar="N", help="at a time")
    parser.add_argument("--plot", metavar="FILE", help="draw latency over rate, as .svg or .png")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Make the figures of `args.figures`, print them, write them as JSON, and return them."""
    output = output_file(args.output)
    plot = plot_file(args.plot)
    requested = _requested(args.figures)
    if not 0 < args.minutes < math.inf:
        raise InvalidConfigError(f"minutes must be above 0 and finite, got {args.minutes}")
    for name, least in (("num_requests", 2), ("processes", 1)):
        if getattr(args, name) < least:
            raise InvalidConfigError(f"{name} must be at least {least}, got {getattr(args, name)}")
    if plot is not None and "12" not in requested:
        raise InvalidConfigError("plot draws the rates of figure 12, which figures leaves out")
    console = DataConsole()
    settings = {"minutes": args.minutes, "num_requests": args.num_requests, "model": args.model}
    results = head(settings)
    kept = _kept(output, requested) if args.update else []
    figures: list[dict[str, Any]] = []
    with processes(args.processes, load_benchmarks) as pool:
        for name, make in _makers(args, pool):
            if name in requested:
                start = time.perf_counter()
                with console.status(f"{name} ..."):
                    made = make()
                seconds = round(time.perf_counter() - start, 1)
                for figure in made if isinstance(made, list) else [made]:
                    _print(console, figure)
                    rows = [row._asdict() for row in figure.rows]
                    made_at = {"name": name, "date": results["date"], "seconds": seconds}
                    figures.append(made_at | asdict(figure) | {"rows": rows})
    results["figures"] = sorted(kept + figures, key=lambda figure: FIGURES.index(figure["name"]))
    write_results(console, output, results)
    if plot is not None:
        draw_rates(
            plot, {figure["title"]: figure["curves"] for figure in figures if figure["curves"]}, TARGET
        )
    return results


def _kept(output: Path, requested: set[str]) -> list[dict[str, Any]]:
    """Return the figures of an earlier run that this one doesn't make again."""
    try:
        figures = json.loads(output.read_text(encoding="utf-8"))["figures"]
        return [figure for figure in figures if figure["name"] not in requested]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InvalidConfigError(f"output={str(output)!r} holds no figures to keep: {error!r}") from None


def _requested(names: str) -> set[str]:
    requested = set(FIGURES) if names == "all" else {name.strip() for name in names.split(",")}
    if unknown := requested - set(FIGURES):
        raise InvalidConfigError(f"figures={sorted(unknown)[0]!r} is none of all, {', '.join(FIGURES)}")
    return requested


def _makers(args: argparse.Namespace, pool: Map) -> list[tuple[str, Callable[[], Figure | list[Figure]]]]:
    """Return the function that makes each figure, in the order in which they are made."""
    from . import measured, simulated  # not before a bench runs: its help must not wait for torch

    times: dict[int, float] = {}

    def kernel() -> list[Figure]:
        times.update(measured.kernel_times())
        rates = simulated.block_sizes(pool, args.minutes, measured.slowdown(times))
        return [measured.kernel_overhead(times), rates]

    @cache
    def searches() -> dict[int, list[Parents]]:
        llm = LLM(args.model, dtype="float32", enable_prefix_caching=False)
        return {width: record_parents(llm, width, BEAM_TOKENS) for width in WIDTHS}

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
        ("14", lambda: simulated.groups(pool, args.minutes, searches())),
        ("15", lambda: simulated.saved(pool, args.minutes, searches())),
        ("16", lambda: simulated.shared_prefix(pool, args.minutes)),
        ("17", lambda: simulated.chat(pool, args.minutes)),
        ("19", lambda: simulated.swap_or_recompute(pool, args.minutes)),
    ]


def _print(console: DataConsole, figure: Figure) -> None:
    table = empty_table(figure.title)
    table.add_column("")
    table.add_column("paper")
    table.add_column("here")
    for row in figure.rows:
        table.add_row(row.what, row.paper, row.ours)
    console.print(table)
    if figure.remark:
        console.print(figure.remark, style="dim")
    console.print()
