"""The interchangeable implementations of attention over blocks, by name.

All take the same arguments, and tests hold them equal: `triton` (a GPU, or Triton's interpreter), `numba`
(compiled for the CPU) and `reference` (plain Python, to check the others against).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import cache
from threading import Timer
from typing import Any, NamedTuple

import numpy as np
import torch

from ..errors import BackendUnavailableError
from ..reference import attention as reference

PATIENCE = 4.0  # seconds without a word; to fetch compiled code takes less, on a busy machine too

Attention = Callable[..., torch.Tensor]
Options = tuple[float, int | None, float | None]  # scale, window and soft cap


class AttentionBackend(NamedTuple):
    """The two functions of one implementation; see `minipaged.kernels.attention` for their arguments."""

    name: str
    decode: Attention
    prefill: Attention

    def warm_up(self, dtype: torch.dtype) -> None:
        """Compile what a first step would have to compile, or fetch what an earlier process compiled.

        Only Numba's code takes long: some 20 s, once for each dtype. A line on standard error says so.
        """
        if self.name == "numba":
            _compile(self.decode, dtype)


@cache  # a further engine of the process has nothing to compile
def _compile(decode: Attention, dtype: torch.dtype) -> None:
    from ..kernels._cpu_arguments import as_cache, write

    start = time.perf_counter()
    note = Timer(PATIENCE, _print_note)
    note.start()
    queries, pool = torch.zeros(1, 8, 64, dtype=dtype), torch.zeros(1, 16, 8, 64, dtype=dtype)
    try:
        for num_blocks in (1, 256):  # a call for one thread, and one that is worth several
            tables = torch.zeros(1, num_blocks, dtype=torch.int32)
            length = torch.tensor([num_blocks * 16], dtype=torch.int32)
            decode(queries, pool, pool, tables, length, scale=1.0)
        write(as_cache(pool), pool[0], np.zeros(16, np.int64))
    finally:
        note.cancel()
        note.join()
    if (seconds := time.perf_counter() - start) > PATIENCE:
        print(f"{seconds:.0f} s", file=sys.stderr, flush=True)


def _print_note() -> None:
    print("compiling attention for this CPU, once: ", end="", file=sys.stderr, flush=True)


def get_backend(name: str, device: torch.device, dtype: torch.dtype = torch.float32) -> AttentionBackend:
    """The backend called `name`, or raise BackendUnavailableError where this machine can't run it.

    `auto` is `triton` on a GPU and `numba` on a CPU.
    """
    if name == "auto":
        name = "numba" if device.type == "cpu" else "triton"
    if name == "triton" and device.type == "cpu" and dtype == torch.bfloat16:
        raise BackendUnavailableError(
            "attention_backend='triton' without a GPU runs in Triton's interpreter, which has no "
            "dtype='bfloat16': use another dtype, or attention_backend='numba'"
        )
    return {"triton": _triton, "numba": _numba, "reference": _reference}[name](device)


def _triton(device: torch.device) -> AttentionBackend:
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        raise BackendUnavailableError(
            "attention_backend='triton' needs a GPU; on a CPU set TRITON_INTERPRET=1 before triton or "
            "transformers is first imported, or use attention_backend='numba'"
        )
    from ..kernels import attention
    from ..kernels._triton import HAS_TRITON

    if not HAS_TRITON:
        raise BackendUnavailableError("attention_backend='triton': triton is not installed (Linux only)")
    return AttentionBackend("triton", attention.decode_attention, attention.prefill_attention)


def _numba(device: torch.device) -> AttentionBackend:
    if device.type != "cpu":
        raise BackendUnavailableError(f"attention_backend='numba' runs on a CPU, not on {device.type}")
    from ..kernels import attention_cpu

    return AttentionBackend("numba", attention_cpu.decode_attention, attention_cpu.prefill_attention)


def _reference(device: torch.device) -> AttentionBackend:
    return AttentionBackend("reference", _reference_decode, _reference_prefill)


def _reference_decode(
    queries: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lengths: torch.Tensor,
    **options: Any,
) -> torch.Tensor:
    """Decode is prefill with one query per sequence."""
    starts = torch.arange(len(queries) + 1)
    return _reference_prefill(
        queries, key_cache, value_cache, block_tables, context_lengths, starts, **options
    )


def _reference_prefill(
    queries: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lengths: torch.Tensor,
    query_starts: torch.Tensor,
    *,
    max_query_length: int | None = None,
    **options: Any,
) -> torch.Tensor:
    """Turn tensors into lists, one sequence at a time, and only the blocks that it owns."""
    output = torch.zeros_like(queries)
    starts = query_starts.tolist()
    for i, length in enumerate(context_lengths.tolist()):
        table = block_tables[i, : -(-length // key_cache.shape[1])].tolist()
        keys = {block: key_cache[block].tolist() for block in table}
        values = {block: value_cache[block].tolist() for block in table}
        rows = queries[starts[i] : starts[i + 1]].tolist()
        if rows:
            attended = reference.prefill_attention(rows, keys, values, table, length, **options)
            output[starts[i] : starts[i + 1]] = torch.tensor(attended, dtype=torch.float64).to(output)
    return output
