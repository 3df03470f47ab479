"""Timing by hand, where two calls must be compared within one run on a machine that others use too."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

HAS_GPU = torch.cuda.is_available()
needs_gpu = pytest.mark.skipif(
    not HAS_GPU, reason="no CUDA device: an interpreted kernel's time says nothing of the kernel"
)


def best_of(calls: Sequence[Callable[[], Any]], rounds: int) -> list[float]:
    """Seconds of each call's fastest round. Rounds take turns, so that a busy moment hits all calls alike."""
    best = [float("inf")] * len(calls)
    for _ in range(rounds):
        for index, call in enumerate(calls):
            start = time.perf_counter()
            call()
            best[index] = min(best[index], time.perf_counter() - start)
    return best


def synchronised(call: Callable[[], Any]) -> Callable[[], Any]:
    """The call, and the wait until the device has done it."""

    def run() -> Any:
        result = call()
        torch.cuda.synchronize()
        return result

    return run
