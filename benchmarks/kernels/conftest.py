"""What the benchmarks share: the fixtures that time, and a summary that says how costs grow.

Without --benchmark-enable every benchmark runs once, untimed, and only its result is looked at.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from minipaged.cli.machine import interpret_kernels_without_gpu

# As in tests/conftest.py: before anything imports triton, and no more threads than asked for.
interpret_kernels_without_gpu()
os.environ.setdefault("OMP_NUM_THREADS", "1")

COSTS = pytest.StashKey[dict[tuple[str, str], dict[str, float]]]()  # (concept, side): seconds by size
RATIOS = pytest.StashKey[dict[str, dict[str, Any]]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[COSTS] = {}
    config.stash[RATIOS] = {}


@pytest.fixture
def measure(benchmark: Any, pytestconfig: pytest.Config) -> Callable[..., Any]:
    """Time a call in the group of its concept and size, beside the other sides; return what it returns."""

    def run(concept: str, side: str, size: str, call: Callable[[], Any]) -> Any:
        benchmark.group = f"{concept}: {size}"
        result = benchmark(call)
        if benchmark.stats is not None:
            pytestconfig.stash[COSTS].setdefault((concept, side), {})[size] = benchmark.stats.stats.min
        return result

    return run


@pytest.fixture
def note_ratio(pytestconfig: pytest.Config) -> Callable[..., None]:
    """Keep a ratio, and what it comes from, for the summary and the JSON file."""

    def note(name: str, ratio: float, detail: str = "") -> None:
        pytestconfig.stash[RATIOS][name] = {"ratio": ratio, "detail": detail}

    return note


@pytest.fixture
def timed(pytestconfig: pytest.Config) -> bool:
    """True where this run is for its timings."""
    return is_timed(pytestconfig)


def is_timed(config: pytest.Config) -> bool:
    """pyproject.toml disables timing, and --benchmark-enable undoes that."""
    return config.getoption("benchmark_enable") or not config.getoption("benchmark_disable")


def pytest_benchmark_update_json(config: pytest.Config, benchmarks: Any, output_json: dict[str, Any]) -> None:
    """Write what the summary says into the JSON file too, and leave out the time of every single round."""
    for each in output_json["benchmarks"]:
        each["stats"].pop("data", None)
    output_json["ratios"] = config.stash[RATIOS]
    output_json["growth"] = list(growth_lines(config.stash[COSTS]))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if not is_timed(config):
        return
    terminalreporter.section("how costs grow (the fastest round of each)")
    for line in growth_lines(config.stash[COSTS]):
        terminalreporter.write_line(line)
    terminalreporter.section("ratios (interleaved rounds, the fastest of each)")
    for name, noted in config.stash[RATIOS].items():
        terminalreporter.write_line(f"{name}: {noted['ratio']:.2f} {noted['detail']}".rstrip())


def growth_lines(costs: dict[tuple[str, str], dict[str, float]]) -> Iterator[str]:
    """One line for each concept and side: microseconds by size, and how often the first the last one is."""
    for (concept, side), by_size in costs.items():
        steps = ", ".join(f"{size} {1e6 * seconds:,.1f} µs" for size, seconds in by_size.items())
        first, last = next(iter(by_size.values())), list(by_size.values())[-1]
        yield f"{concept}, {side}: {steps}" + (f" (x {last / first:.1f})" if len(by_size) > 1 else "")
