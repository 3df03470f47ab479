"""`minipaged bench step`: what a decode step takes on a CPU, beside the least that this machine could take.

A step reads all weights and the cache of every sequence once, and multiplies each token by all weights. The
limit is the longer of the two, at the speeds that are measured first. Page: docs/cpu_ledger.md.
"""

from __future__ import annotations

import argparse
from typing import Any

from minipaged.errors import InvalidConfigError
from minipaged.terminal.console import DataConsole
from minipaged.terminal.results import output_file, write_results

from ..shared.report import add_output_argument, head, print_limits, print_machine, print_table

# A dtype, and the settings of LLM beside it. In bfloat16 weights are packed by default, where that pays.
PLAIN, PACKED = {"pack_weights": False}, {"pack_weights": True}
FUSED = PACKED | {"fuse_modules": True}
WAYS = [(dtype, settings) for dtype in ("float32", "bfloat16") for settings in (PLAIN, PACKED, FUSED)]
NAMES = {(False, False): "plain", (True, False): "packed", (True, True): "fused"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The length of the contexts, and how long each figure is measured."""
    parser.add_argument("--context", type=int, default=200, metavar="N", help="tokens of each sequence")
    parser.add_argument("--seconds", type=float, default=4.0, metavar="S", help="for each figure")
    add_output_argument(parser, "step")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure, print, write `args.output` as JSON, and return it. Raises InvalidConfigError for no time."""
    if args.context < 1 or args.seconds <= 0:
        raise InvalidConfigError("context must be at least 1 and seconds above 0")
    output = output_file(args.output)
    from ..shared.limits import machine_limits  # torch: the help must not wait for it
    from .measure import measure

    console = DataConsole()
    results = head({"context": args.context, "seconds": args.seconds})
    results["limits"] = limits = machine_limits()
    results["steps"] = []
    for dtype, settings in WAYS:
        name = NAMES[settings["pack_weights"], settings.get("fuse_modules", False)]
        with console.status(f"{dtype}, {name} ..."):
            rows = measure(dtype, settings, args.context, args.seconds, limits)
        results["steps"] += [{"dtype": dtype, "weights": name} | row for row in rows]
    _print(console, results)
    write_results(console, output, results)
    return results


def _print(console: DataConsole, results: dict[str, Any]) -> None:
    print_machine(console, results)
    print_limits(console, results)
    rows = [
        (
            f"{row['dtype']}, {row['weights']}",
            str(row["sequences"]),
            f"{row['step_ms']:.1f}",
            f"{row['linear_ms']:.1f}",
            f"{row['limit_ms']:.1f}",
            f"{row['step_ms'] / row['limit_ms']:.2f}",
        )
        for row in results["steps"]
    ]
    columns = ("weights", "sequences", "step, ms", "linear layers, ms", "limit, ms", "step / limit")
    print_table(console, f"A decode step at context {results['settings']['context']}", columns, rows)
