"""`minipaged bench-swap`: is it cheaper to fetch a preempted sequence's blocks, or to compute them again?

The paper's Figure 19 on this machine: one sequence in pools of many block sizes is copied to the host pool
and back, and computed once more. Then an engine with too small a pool serves the same requests with either
way of preempting. Page: docs/concepts/preemption.md.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from rich.table import Table

from ..engine.model_hook import ATTENTION_NAME
from ..models.loading import load_model
from . import bench_report
from .bench_preemption import OUTPUT, POOL, PROMPT, move_or_recompute, serve_both_ways
from .console import DataConsole

BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SERVED_BLOCK_SIZES = (4, 16, 64)
PLACES = {
    "cpu": "On a CPU both pools lie in the same memory: a swap is a copy, and no bus is crossed.",
    "cuda": "A swap crosses the bus between the GPU and pinned host memory.",
}


def bench_swap(args: argparse.Namespace) -> dict[str, Any]:
    """Run both parts, print them, write them to `args.output` as JSON, and return them."""
    output = bench_report.output_file(args.output)
    console = DataConsole()
    loaded = load_model(args.model, dtype=args.dtype, device=args.device, attn_implementation=ATTENTION_NAME)
    settings = {
        name: getattr(args, name) for name in ("model", "dtype", "num_tokens", "num_requests", "rounds")
    }
    settings["device"] = loaded.model.device.type
    results = bench_report.head(settings, torch.get_num_threads())
    with console.status("one sequence ..."):
        results["sequence"] = move_or_recompute(loaded, BLOCK_SIZES, args.num_tokens, args.rounds)
    with console.status("too small a pool ..."):
        results["served"] = serve_both_ways(loaded, SERVED_BLOCK_SIZES, args.num_requests, args.rounds)
    print_results(console, results)
    bench_report.write_results(console, output, results)
    return results


def print_results(console: DataConsole, results: dict[str, Any]) -> None:
    """Both parts, for people."""
    machine, settings = results["machine"], results["settings"]
    console.print(
        f"{machine['cpu']}, {machine['threads']} threads, {machine['gpu'] or 'no GPU'}, {results['date']}"
    )
    console.print(_sequence_table(results))
    console.print(verdict(results["sequence"]))
    console.print(PLACES[settings["device"]], style="dim")
    console.print(_served_table(results))
    console.print(
        f"same counts the requests, of {settings['num_requests']}, whose tokens are those of a run with "
        "room for all. Prefix caching is off, or recomputation would find a part of its blocks.",
        style="dim",
    )


def verdict(rows: list[dict[str, Any]]) -> str:
    """Which of the two is cheaper at which block sizes, in a line."""
    cheaper = {
        "swapping out and in": [row["block_size"] for row in rows if row["both"] < row["recompute"]],
        "recomputation": [row["block_size"] for row in rows if row["both"] >= row["recompute"]],
    }
    found = [f"{way} at block size {', '.join(map(str, sizes))}" for way, sizes in cheaper.items() if sizes]
    return f"Cheaper on this machine: {'; '.join(found)}."


def _sequence_table(results: dict[str, Any]) -> Table:
    settings = results["settings"]
    names = ("block size", "copies", "KiB each", "out", "in", "both", "recompute", "× both")
    table = bench_report.empty_table(
        f"Milliseconds for {settings['num_tokens']} tokens of {settings['model']}", names
    )
    for row in results["sequence"]:
        table.add_row(
            str(row["block_size"]),
            str(row["num_copies"]),
            f"{row['bytes_per_copy'] / 1024:,.0f}",
            *(f"{1e3 * row[name]:.2f}" for name in ("out", "in", "both", "recompute")),
            f"{row['recompute'] / row['both']:.1f}",
        )
    return table


def _served_table(results: dict[str, Any]) -> Table:
    number = results["settings"]["num_requests"]
    title = f"{number} requests of {PROMPT[0]} to {PROMPT[1]} tokens that want {OUTPUT} more, {POOL} slots"
    names = ("block size", "preempted by", "seconds", "preemptions", "blocks swapped out", "same")
    table = bench_report.empty_table(title, names)
    for row in results["served"]:
        counts = (row["num_preemptions"], row["num_swapped_out_blocks"], row["same_tokens"])
        table.add_row(str(row["block_size"]), row["way"], f"{row['seconds']:.2f}", *map(str, counts))
    return table
