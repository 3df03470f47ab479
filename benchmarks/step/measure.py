"""Decode steps of a real model, timed: all of a step, and its linear layers alone."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from minipaged import LLM
from minipaged.engine.batch import Batch
from minipaged.kernels.block_table import slot_mapping
from minipaged.models.precision import DTYPES
from minipaged.reference.block_table import num_blocks_for

BATCHES = (1, 8, 32)
BLOCK_SIZE = 16


def measure(
    dtype: str, settings: dict[str, Any], context: int, seconds: float, limits: dict[str, float]
) -> list[dict[str, Any]]:
    """Milliseconds of a step, of its linear layers alone, and at the limit, for each number of sequences."""
    num_blocks = max(BATCHES) * num_blocks_for(context, BLOCK_SIZE)
    llm = LLM(dtype=dtype, device="cpu", block_size=BLOCK_SIZE, num_blocks=num_blocks, **settings)
    runner = llm.engine.runner
    runner.cache.pool.normal_()
    layers = [module for module in runner.model.modules() if "Linear" in type(module).__name__]
    rows = []
    for num_seqs in BATCHES:
        step = partial(runner._forward, _batch(num_seqs, context, num_blocks), runner.cache)
        inputs = [torch.randn(1, num_seqs, layer.in_features, dtype=runner.model.dtype) for layer in layers]
        rows.append(
            {
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
