"""`minipaged bench peers`: this engine beside vLLM's CPU build and Hugging Face, on the same requests.

All systems stay loaded, one of them works at a time, and they take turns: what the machine does meanwhile
meets them all. The figure is the median of the rounds. Page: docs/cpu_ledger.md.
"""

from __future__ import annotations

import argparse
import statistics
from contextlib import ExitStack
from typing import Any

from minipaged.errors import InvalidConfigError
from minipaged.models.default_model import DEFAULT_MODEL, ensure_default_model
from minipaged.terminal.console import DataConsole
from minipaged.terminal.results import output_file, write_results

from ..huggingface import bench as huggingface
from ..huggingface.workload import RequestSet, Settings, batches, make_workload
from ..shared.models import plain_token_ids
from ..shared.report import add_output_argument, head, print_limits, print_machine, print_table
from .systems import SYSTEMS, Worker, started

# By name: how many of the requests, and how many of them a system is given at once.
LOADS = {"32 requests": (32, 32), "8 requests": (8, 8), "one at a time": (3, 1)}
WARM_UP = 4  # tokens of each request


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is compared, and how often."""
    parser.add_argument("--model", default=DEFAULT_MODEL, metavar="FOLDER")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="runs of each load and system")
    parser.add_argument("--only", default="", metavar="NAMES", help="systems, with commas between them")
    add_output_argument(parser, "peers")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Run the comparison, print it, write it to `args.output` as JSON, and return it.

    Raises InvalidConfigError where no system is left, MinipagedError where one fails.
    """
    if args.rounds < 1:
        raise InvalidConfigError(f"rounds must be at least 1, got {args.rounds}")
    output = output_file(args.output)
    wanted = [name.strip() for name in args.only.split(",")] if args.only else list(SYSTEMS)
    if unknown := [name for name in wanted if name not in SYSTEMS]:
        raise InvalidConfigError(f"only must name some of {', '.join(SYSTEMS)}; got {', '.join(unknown)}")
    names = [name for name in wanted if SYSTEMS[name].is_installed]
    if not names:
        raise InvalidConfigError(
            f"only={args.only!r} leaves no system that is installed: {', '.join(wanted)}"
        )
    from ..shared.limits import machine_limits  # torch: the help must not wait for it

    console = DataConsole()
    model = str(ensure_default_model()) if args.model == DEFAULT_MODEL else args.model
    results = head({"model": args.model, "rounds": args.rounds})
    results["limits"] = machine_limits()
    results["not_installed"] = [name for name in wanted if name not in names]
    results["loads"] = _compare(console, names, model, args.rounds)
    _print(console, results)
    write_results(console, output, results)
    return results


def _compare(console: DataConsole, names: list[str], model: str, rounds: int) -> dict[str, Any]:
    from minipaged.models.loading import load_model  # torch: the help must not wait for it

    requests = make_workload(_settings(model), plain_token_ids(load_model(model)))
    with ExitStack() as stack:
        workers = {}
        for name in names:
            with console.status(f"{name}: loading ..."):
                workers[name] = stack.enter_context(started(name, model))
        return {
            load: _measure(console, load, workers, rounds, next(batches(requests, count)), at_once)
            for load, (count, at_once) in LOADS.items()
        }


def _measure(
    console: DataConsole,
    load: str,
    workers: dict[str, Worker],
    rounds: int,
    requests: RequestSet,
    at_once: int,
) -> dict[str, Any]:
    """Run one load on all systems in turns, `rounds` times, after a few tokens of each request to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in workers}
    tokens: dict[str, list[list[int]]] = {}
    prompts, lengths = requests
    for worker in workers.values():
        worker.run(prompts, [WARM_UP] * len(prompts), at_once)
    for turn in range(rounds):
        for name, worker in workers.items():
            with console.status(f"{load}, round {turn + 1} of {rounds}: {name} ..."):
                answer = worker.run(prompts, lengths, at_once)
            tokens[name] = answer["tokens"]
            seconds[name].append(answer["seconds"])
    num_tokens = sum(lengths)
    return {
        name: {
            "tokens_per_second": num_tokens / statistics.median(values),
            "lowest": num_tokens / max(values),
            "highest": num_tokens / min(values),
            "same_tokens": _num_same(tokens, name),
        }
        for name, values in seconds.items()
    }


def _num_same(tokens: dict[str, list[list[int]]], name: str) -> int:
    """How many requests got the tokens that the first system of the same dtype gave them."""
    first = next(other for other in tokens if SYSTEMS[other].dtype == SYSTEMS[name].dtype)
    return sum(a == b for a, b in zip(tokens[name], tokens[first], strict=True))


def _settings(model: str) -> Settings:
    """Those of `minipaged bench`, so that both run the same requests."""
    parser = argparse.ArgumentParser()
    huggingface.add_arguments(parser)
    return huggingface.settings_from(parser.parse_args(["--model", model]))


def _print(console: DataConsole, results: dict[str, Any]) -> None:
    print_machine(console, results)
    print_limits(console, results)
    for name in results["not_installed"]:
        console.print(f"{name}: not installed, see `make bench-peers`", markup=False)
    for load, systems in results["loads"].items():
        rows = []
        for name, row in systems.items():
            speeds = (row["tokens_per_second"], row["lowest"], row["highest"])
            rows.append((name, *(f"{speed:.1f}" for speed in speeds), str(row["same_tokens"])))
        columns = ("system", "tokens/s, median", "lowest", "highest", "requests with the first's tokens")
        print_table(console, load, columns, rows)
