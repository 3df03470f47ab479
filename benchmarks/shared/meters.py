"""Meters: peak memory, and where the time of an engine's steps goes."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from minipaged.errors import MinipagedError


@contextmanager
def timed_parts(engine: Any) -> Iterator[dict[str, float]]:
    """Wrap the parts of a step in stopwatches, and unwrap them again. Linear layers and attention are parts
    of the forward; the forward and the sampler are parts of the step."""
    from transformers import AttentionInterface

    from minipaged.engine import decoding
    from minipaged.engine.model_hook import ATTENTION_NAME, paged_attention

    seconds = dict.fromkeys(("step", "forward", "linear", "attention", "sampler"), 0.0)
    clock = _synchronised_clock(engine.runner.device)

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            start = clock()
            try:
                return function(*args, **kwargs)
            finally:
                seconds[name] += clock() - start

        return run

    model = engine.runner.model
    with ExitStack() as stack:
        for name, modules in (("forward", [model]), ("linear", filter(_is_linear, model.modules()))):
            for module in modules:
                _time_module(stack, module, name, seconds, clock)
        sample, step = decoding.sample, engine.step
        stack.callback(setattr, decoding, "sample", sample)
        stack.callback(delattr, engine, "step")
        stack.callback(AttentionInterface.register, ATTENTION_NAME, paged_attention)
        decoding.sample = timed("sampler", sample)  # type: ignore[assignment]
        engine.step = timed("step", step)
        AttentionInterface.register(ATTENTION_NAME, timed("attention", paged_attention))
        yield seconds


def _time_module(
    stack: ExitStack,
    module: torch.nn.Module,
    name: str,
    seconds: dict[str, float],
    clock: Callable[[], float],
) -> None:
    """Count the time between a module's hooks; a module doesn't call itself, so one start will do."""
    start = 0.0

    def begin(*_: Any) -> None:
        nonlocal start
        start = clock()

    def end(*_: Any) -> None:
        seconds[name] += clock() - start

    stack.callback(module.register_forward_pre_hook(begin).remove)
    stack.callback(module.register_forward_hook(end).remove)


def _is_linear(module: torch.nn.Module) -> bool:
    """A layer that multiplies by a weight matrix: nn.Linear, what replaces it, and GPT-2's Conv1D."""
    name = type(module).__name__
    return isinstance(module, torch.nn.Linear) or "Linear" in name or name == "Conv1D"


def _synchronised_clock(device: torch.device) -> Callable[[], float]:
    """On a GPU, time is read once all that was launched is done."""
    if device.type != "cuda":
        return time.perf_counter

    def clock() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return clock


class PeakMemory:
    """The most memory that is in use while a `with` block runs, in bytes.

    On a GPU, what torch has allocated there; on a CPU, the resident memory of the process, which Linux
    alone can measure for a part of its life: elsewhere all figures are None.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self.before: int | None = None
        self.peak: int | None = None

    @property
    def growth(self) -> int | None:
        """The peak above what was in use before."""
        return None if self.peak is None or self.before is None else self.peak - self.before

    def include(self, num_bytes: int) -> None:
        """Count as part of the run what was taken for it beforehand."""
        if self.before is not None:
            self.before -= num_bytes

    def __enter__(self) -> PeakMemory:
        gc.collect()
        if self._on_gpu:
            torch.cuda.reset_peak_memory_stats()
            self.before = torch.cuda.memory_allocated()
        elif _reset_peak_rss():
            self.before = _resident_bytes("VmRSS")
        return self

    def __exit__(self, *exception: object) -> None:
        if self._on_gpu:
            self.peak = torch.cuda.max_memory_allocated()
        elif self.before is not None:
            self.peak = _resident_bytes("VmHWM")


def _reset_peak_rss() -> bool:
    """Let the high-water mark of resident memory start at what is in use now; False where it can't."""
    with suppress(OSError, AttributeError, TypeError):  # glibc alone has it
        ctypes.CDLL(None).malloc_trim(0)  # what loading has freed goes back, or the run would fill it unseen
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _resident_bytes(field: str) -> int:
    """A figure of /proc/self/status, which counts in KiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise MinipagedError(f"/proc/self/status has no {field}")
