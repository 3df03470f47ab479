"""`minipaged bench step`: what a decode step takes on a CPU, beside the least that this machine could take.

A step reads all weights and the cache of every sequence once, and multiplies each token by all weights. The
limit is the longer of the two, at the speeds that are measured first. Page: docs/cpu_ledger.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from minipaged import LLM
from minipaged.engine.batch import Batch
from minipaged.errors import InvalidConfigError
from minipaged.kernels.block_table import slot_mapping
from minipaged.models.loading import DTYPES
from minipaged.reference.block_table import num_blocks_for
from minipaged.terminal.console import DataConsole
from minipaged.terminal.results import output_file, write_results

from .peers.limits import machine_limits
from .shared.report import add_output_argument, head, print_machine, print_table

BATCHES = (1, 8, 32)
BLOCK_SIZE = 16
WAYS = [("float32", False), ("float32", True), ("bfloat16", False), ("bfloat16", True)]  # and whether packed


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
    console = DataConsole()
    results = head({"context": args.context, "seconds": args.seconds})
    results["limits"] = limits = machine_limits()
    results["steps"] = []
    for dtype, packed in WAYS:
        with console.status(f"{dtype}, {'packed' if packed else 'plain'} ..."):
            results["steps"] += _measure(dtype, packed, args.context, args.seconds, limits)
    _print(console, results)
    write_results(console, output, results)
    return results


def _measure(
    dtype: str, packed: bool, context: int, seconds: float, limits: dict[str, float]
) -> list[dict[str, Any]]:
    """Milliseconds of a step, of its linear layers alone, and at the limit, for each number of sequences."""
    num_blocks = max(BATCHES) * num_blocks_for(context, BLOCK_SIZE)
    llm = LLM(dtype=dtype, device="cpu", block_size=BLOCK_SIZE, num_blocks=num_blocks, pack_weights=packed)
    runner = llm.engine.runner
    runner.cache.pool.normal_()
    layers = [module for module in runner.model.modules() if "Linear" in type(module).__name__]
    rows = []
    for num_seqs in BATCHES:
        step = partial(runner._forward, _batch(num_seqs, context, num_blocks), runner.cache)
        inputs = [torch.randn(1, num_seqs, layer.in_features, dtype=runner.model.dtype) for layer in layers]
        rows.append(
            {
                "dtype": dtype,
                "packed": packed,
                "sequences": num_seqs,
                "step_ms": _milliseconds(step, seconds),
                "linear_ms": _milliseconds(partial(_multiply, layers, inputs), seconds),
                "limit_ms": _limit(layers, num_seqs, context * runner.shape.bytes_per_token, dtype, limits),
            }
        )
    return rows


def _multiply(layers: Sequence[Any], inputs: Sequence[torch.Tensor]) -> None:
    for layer, tensor in zip(layers, inputs, strict=True):
        layer(tensor)


def _limit(
    layers: Sequence[Any], num_seqs: int, bytes_each: int, dtype: str, limits: dict[str, float]
) -> float:
    """Milliseconds of reading weights and cache once, or of the products, whichever takes longer."""
    num_weights = sum(layer.in_features * layer.out_features for layer in layers)
    num_bytes = num_weights * DTYPES[dtype].itemsize + num_seqs * bytes_each
    reading = num_bytes / limits["read GB/s"] / 1e9
    multiplying = 2 * num_weights * num_seqs / limits[f"{dtype} TFLOP/s"] / 1e12
    return max(reading, multiplying) * 1e3


def _batch(num_seqs: int, context: int, num_blocks: int) -> Batch:
    """A step in which each sequence computes its last token; its blocks lie scattered."""
    each = num_blocks_for(context, BLOCK_SIZE)
    scattered = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    tables = scattered[: num_seqs * each].view(num_seqs, each)
    positions, rows = torch.full((num_seqs,), context - 1), torch.arange(num_seqs)
    return Batch(
        input_ids=rows + 100,
        positions=positions,
        slots=slot_mapping(tables, positions, rows, BLOCK_SIZE),
        block_tables=tables,
        context_lengths=torch.full((num_seqs,), context, dtype=torch.int32),
        prefill_starts=torch.zeros(1, dtype=torch.int32),
        num_decodes=num_seqs,
        max_query_length=1,
        logit_indices=rows,
    )


@torch.inference_mode()
def _milliseconds(work: Callable[[], object], seconds: float) -> float:
    """The median over as many calls as fit."""
    work()
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(taken) < 5:
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken) * 1e3


def _print(console: DataConsole, results: dict[str, Any]) -> None:
    print_machine(console, results)
    console.print(", ".join(f"{name} {value:.1f}" for name, value in results["limits"].items()), markup=False)
    rows = [
        (
            f"{row['dtype']}{', packed' if row['packed'] else ''}",
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
