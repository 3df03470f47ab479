"""`minipaged bench-scheduler`: what the engine's bookkeeping costs, as sequences and blocks grow in number.

Steps without a model, by the parts of the bookkeeping; the life of one sequence in pools of growing size; and
what share of a real model's step all of it is. Page: docs/concepts/continuous_batching.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence as SequenceOf
from typing import Any

import torch

from ..engine.model_hook import ATTENTION_NAME
from ..errors import InvalidConfigError
from ..models.loading import load_model
from . import bench_report
from .bench_bookkeeping import LENGTH, PARTS, RESERVE, decode, make_engine, pool_costs, stand_in_steps
from .console import DataConsole

NUM_SEQUENCES = (8, 64, 256, 1_024)  # running at once
POOL_SIZES = (1_000, 10_000, 100_000, 1_000_000)  # blocks
REAL_SEQUENCES, REAL_ROUNDS = 64, 2


def bench_scheduler(args: argparse.Namespace) -> dict[str, Any]:
    """Run all three parts, print them, write them to `args.output` as JSON, and return them."""
    output = bench_report.output_file(args.output)
    loaded = load_model(args.model, dtype=args.dtype, device=args.device, attn_implementation=ATTENTION_NAME)
    longest = loaded.max_model_len - RESERVE
    if not 1 <= args.context_tokens <= longest:
        raise InvalidConfigError(f"context_tokens must be from 1 to {longest}, got {args.context_tokens}")
    console = DataConsole()
    names = ("model", "dtype", "context_tokens")
    results = bench_report.head({name: getattr(args, name) for name in names}, torch.get_num_threads())
    with console.status("bookkeeping alone ..."):
        results["steps"] = [stand_in_steps(number, args.context_tokens) for number in NUM_SEQUENCES]
        results["pools"] = [pool_costs(num_blocks) for num_blocks in POOL_SIZES]
    with console.status(f"{args.model} ..."):
        engine = make_engine(loaded, REAL_SEQUENCES, args.context_tokens)
        real = decode(engine, REAL_SEQUENCES, args.context_tokens, REAL_ROUNDS)
        results["real_step"] = real | {"share": real["bookkeeping"] / real["step"]}
    print_results(console, results)
    bench_report.write_results(console, output, results)
    return results


def print_results(console: DataConsole, results: dict[str, Any]) -> None:
    """All three parts, for people."""
    machine, settings, real = results["machine"], results["settings"], results["real_step"]
    console.print(f"{machine['cpu']}, {machine['threads']} threads, {results['date']}")
    title = f"Microseconds a step but model and sampler, decode from {settings['context_tokens']} tokens on"
    names = ("sequences", *PARTS, "sum", "each", "calls each")
    rows = [_step_row(row) for row in (*results["steps"], real)]
    _print_table(console, title, names, rows)
    title = f"Microseconds (calls) for a sequence of {LENGTH} tokens, in a pool that is full"
    names = ("blocks", *results["pools"][0]["calls"])
    rows = [_pool_row(row) for row in results["pools"]]
    _print_table(console, title, names, rows)
    console.print(
        f"{settings['model']}, {settings['dtype']}, {real['num_sequences']} sequences: a step takes "
        f"{1e3 * real['step']:.1f} ms, {1e3 * real['bookkeeping']:.2f} ms of it bookkeeping: "
        f"{real['share']:.1%}"
    )


def _step_row(row: dict[str, Any]) -> list[str]:
    number, total, calls = row["num_sequences"], 1e6 * row["bookkeeping"], row.get("calls_per_sequence")
    parts = [f"{1e6 * row['parts'][part]:,.0f}" for part in PARTS]
    last = "real model" if calls is None else f"{calls:.0f}"
    return [f"{number:,}", *parts, f"{total:,.0f}", f"{total / number:.1f}", last]


def _pool_row(row: dict[str, Any]) -> list[str]:
    costs = [f"{1e6 * seconds:.1f} ({row['calls'][name]})" for name, seconds in row["seconds"].items()]
    return [f"{row['num_blocks']:,}", *costs]


def _print_table(
    console: DataConsole, title: str, names: SequenceOf[str], rows: SequenceOf[list[str]]
) -> None:
    table = bench_report.empty_table(title, names)
    for row in rows:
        table.add_row(*row)
    console.print(table)
