"""What this machine can do at most, measured: how fast it reads memory, and how fast it multiplies."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable

import torch

from minipaged.models import huge_pages

SIZE = 1 << 28  # numbers: 1 GiB in float32, more than any cache holds
SIDE = 2048  # of the matrices


def has_bfloat16_units() -> bool:
    """Whether this processor multiplies bfloat16 by itself, with AVX-512 or AMX on x86."""
    if platform.machine() in ("x86_64", "AMD64"):
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def machine_limits() -> dict[str, float]:
    """GB/s read from memory, and TFLOP/s of a square matrix product in each dtype; the best of five tries."""
    limits = {"read GB/s": SIZE * 4 / _best(_reader()) / 1e9}
    for dtype in (torch.float32, torch.bfloat16):
        seconds = _best(_multiplier(dtype))
        limits[f"{str(dtype).removeprefix('torch.')} TFLOP/s"] = 2 * SIDE**3 / seconds / 1e12
    return limits


def _reader() -> Callable[[], object]:
    numbers = huge_pages.empty((SIZE,), torch.float32).fill_(1)
    return lambda: numbers.sum()


def _multiplier(dtype: torch.dtype) -> Callable[[], object]:
    square = torch.ones(SIDE, SIDE, dtype=dtype)
    return lambda: torch.mm(square, square)


def _best(work: Callable[[], object]) -> float:
    work()
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
