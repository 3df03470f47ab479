"""`minipaged bench peers`: this engine beside vLLM, llama.cpp and Hugging Face, on the same requests.

One system works at a time, and they take turns: what the machine does meanwhile meets them all. The figure is
the median of the rounds. Page: docs/cpu_ledger.md.
"""

from __future__ import annotations

import argparse
from typing import Any

from minipaged.errors import InvalidConfigError
from minipaged.models.default_model import DEFAULT_MODEL, ensure_default_model
from minipaged.terminal.console import DataConsole
from minipaged.terminal.results import output_file, write_results

from ..huggingface import bench as huggingface
from ..huggingface.workload import Settings, make_workload
from ..shared.models import plain_token_ids
from ..shared.report import add_output_argument, head, print_limits, print_machine, print_table
from . import loads
from .compare import Comparison
from .systems import SYSTEMS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is compared, and how often."""
    parser.add_argument("--model", default=DEFAULT_MODEL, metavar="FOLDER")
    parser.add_argument(
        "--rounds", type=int, metavar="N", help="runs of each load and system (each load's own)"
    )
    parser.add_argument("--loads", default="", metavar="NAMES", help=f"some of: {', '.join(loads.LOADS)}")
    parser.add_argument("--only", default="", metavar="NAMES", help="systems, with commas between them")
    add_output_argument(parser, "peers")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Run the comparison, print it, write it to `args.output` as JSON, and return it.

    Raises InvalidConfigError for names that nothing has, and where no system can be measured.
    """
    if args.rounds is not None and args.rounds < 1:
        raise InvalidConfigError(f"rounds must be at least 1, got {args.rounds}")
    output = output_file(args.output)
    chosen = loads.named(args.loads)
    names = [name.strip() for name in args.only.split(",")] if args.only else list(SYSTEMS)
    if unknown := [name for name in names if name not in SYSTEMS]:
        raise InvalidConfigError(f"only must name some of {', '.join(SYSTEMS)}; got {', '.join(unknown)}")
    reasons = {name: reason for name in names if (reason := SYSTEMS[name].why_not())}
    if len(reasons) == len(names):
        raise InvalidConfigError(f"only={args.only!r} leaves no system: {reasons}")
    from minipaged.models.loading import load_model  # torch: the help must not wait for it

    from ..shared.limits import machine_limits

    console = DataConsole()
    minutes = loads.expected_minutes(chosen, args.rounds)
    console.print(f"all systems take about {minutes:.0f} minutes on two cores with AMX", style="dim")
    model = str(ensure_default_model()) if args.model == DEFAULT_MODEL else args.model
    results = head({"model": args.model, "rounds": args.rounds})
    results["limits"] = machine_limits()
    token_ids = plain_token_ids(load_model(model))
    requests = make_workload(_settings(model), token_ids)
    comparison = Comparison(console, names, model, requests, token_ids)
    results["loads"] = comparison.run(chosen, args.rounds)
    print_results(console, results)
    write_results(console, output, results)
    return results


def _settings(model: str) -> Settings:
    """Those of `minipaged bench`, so that both run the same requests."""
    parser = argparse.ArgumentParser()
    huggingface.add_arguments(parser)
    return huggingface.settings_from(parser.parse_args(["--model", model]))


def print_results(console: DataConsole, results: dict[str, Any]) -> None:
    """A table for each load, with the reason of each system that has no figures below it."""
    print_machine(console, results)
    print_limits(console, results)
    for load, systems in results["loads"].items():
        rows = []
        for name, row in systems.items():
            if "reason" in row:
                rows.append((name, "–", "–", "–", "–", "–"))
                continue
            speeds = (row["tokens_per_second"], row["lowest"], row["highest"])
            same = f"{row['same_tokens']} of {row['requests']}"
            rows.append((name, *(f"{speed:.1f}" for speed in speeds), str(row["runs"]), same))
        columns = (
            "system",
            "tokens/s, median",
            "lowest",
            "highest",
            "runs",
            "requests with the first's tokens",
        )
        print_table(console, load, columns, rows)
        for name, row in systems.items():
            if "reason" in row:
                console.print(f"{name}: {row['reason']}", markup=False)
