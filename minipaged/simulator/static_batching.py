"""FasterTransformer's way (paper section 6.1): batches that begin and end together, padded to the longest.

As many requests as fit with the longest sequence each are taken in order of arrival. Those that end early
are computed on, and wait, until the last has ended; whoever arrives meanwhile waits too.
Page: docs/concepts/continuous_batching.md.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import InvalidConfigError
from .cost_model import CostModel
from .simulation import SimulationResult
from .workload import Lengths


def simulate_static_batches(
    arrivals: Iterator[tuple[float, Lengths]], batch_size: int, num_slots: int, cost: CostModel
) -> SimulationResult:
    """Serve all of `arrivals`, `batch_size` at a time. Raises InvalidConfigError for a size below 1."""
    if batch_size < 1:
        raise InvalidConfigError(f"batch_size must be at least 1, got {batch_size}")
    result = SimulationResult(num_slots)
    clock = 0.0
    upcoming = next(arrivals, None)
    while upcoming is not None:
        clock = max(clock, upcoming[0])
        batch: list[tuple[float, Lengths]] = []
        while upcoming is not None and upcoming[0] <= clock and len(batch) < batch_size:
            batch.append(upcoming)
            upcoming = next(arrivals, None)
        clock = _serve(batch, clock, cost, result)
    result.seconds = clock
    return result


def _serve(
    batch: list[tuple[float, Lengths]], clock: float, cost: CostModel, result: SimulationResult
) -> float:
    """One batch from its prompts to its longest answer; returns when it has ended."""
    width, prompt = len(batch), max(lengths.prompt for _, lengths in batch)
    start = clock
    clock += cost.forward_seconds(width * prompt, width, width * prompt, width * prompt * (prompt + 1) // 2)
    first = clock
    num_decodes = max(lengths.output for _, lengths in batch) - 1
    # A decode step takes a constant and so much for every token of context: the sum of a series.
    begin, *_, end = (
        cost.forward_seconds(width, width, width * context, width * context)
        for context in (prompt + 1, prompt + 1, prompt + max(num_decodes, 1))
    )
    clock += num_decodes * (begin + end) / 2
    for arrival, lengths in batch:
        result.end(clock - arrival, first - arrival, lengths.output)
        result.num_prompt_tokens += lengths.prompt
    result.num_steps += 1 + num_decodes
    result.peak_running = max(result.peak_running, width)
    result._running_seconds += width * (clock - start)
    result._busy_seconds += clock - start
    return clock
