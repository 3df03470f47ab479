"""FasterTransformer's batches (paper section 6.1): they begin and end together, padded to the longest.

A batch takes as many requests, in order of arrival, as fit if each has the longest sequence. A request that
ends early is computed on until the last has ended. A request that arrives meanwhile waits for the next batch.
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
    """Serve one batch from its prompts to its longest answer, and return the time of its end."""
    width, prompt = len(batch), max(lengths.prompt for _, lengths in batch)
    start = clock
    clock += cost.forward_seconds(width * prompt, width, width * prompt, width * prompt * (prompt + 1) // 2)
    first = clock
    num_decodes = max(lengths.output for _, lengths in batch) - 1
    # The time of a decode step grows linearly with the context: the mean of the first and the last will do.
    begin, end = (
        cost.forward_seconds(width, width, width * context, width * context)
        for context in (prompt + 1, prompt + max(num_decodes, 1))
    )
    clock += num_decodes * (begin + end) / 2
    for arrival, lengths in batch:
        result.end(clock - arrival, first - arrival, lengths.output)
        result.num_prompt_tokens += lengths.prompt
    result.count_steps(1 + num_decodes, width, clock - start)
    return clock
