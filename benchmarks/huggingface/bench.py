"""`minipaged bench`: this engine and Hugging Face `generate`, side by side on the same requests.

Every system runs in a fresh process, one after the other, with the same number of threads: what one leaves
behind in memory or in caches can neither help nor hurt the next, and its peak memory is its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from minipaged.config import BACKENDS
from minipaged.errors import InvalidConfigError, MinipagedError
from minipaged.models.default_model import DEFAULT_MODEL, ensure_default_model
from minipaged.terminal.console import DataConsole
from minipaged.terminal.results import output_file, write_results

from ..shared.models import add_model_arguments
from ..shared.report import add_output_argument, head
from . import report
from .workload import ENGINE, HF_BATCH_SIZES, MOVED, PROFILE, Settings

ONE_AT_A_TIME = "hf-1"
WORKLOAD_KEYS = ("prompt_lengths", "output_lengths", "num_output_tokens")
THREAD_SWITCHES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")

# Run by each fresh process: it can import the library, and through it the clone.
MEASURE_HERE = """
import sys
from minipaged.cli.bench import load_benchmarks
load_benchmarks()
from benchmarks.huggingface.systems import measure_here
sys.exit(measure_here(sys.argv[1]))
"""

Measure = Callable[[str, Settings, dict[str, list[list[int]]]], dict[str, Any]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The requests and the model."""
    add_model_arguments(parser)
    parser.add_argument("--attention-backend", default="auto", metavar="NAME", help=", ".join(BACKENDS))
    parser.add_argument("--num-requests", type=int, default=32, metavar="N")
    parser.add_argument("--min-prompt", type=int, default=16, metavar="N", help="shortest prompt, in tokens")
    parser.add_argument("--max-prompt", type=int, default=256, metavar="N")
    parser.add_argument("--min-output", type=int, default=8, metavar="N", help="shortest output, in tokens")
    parser.add_argument("--max-output", type=int, default=256, metavar="N")
    parser.add_argument("--seed", type=int, default=0, help="of the lengths and the prompts")
    parser.add_argument("--threads", type=int, metavar="N", help="of all systems (torch's own choice)")
    add_output_argument(parser, "huggingface")


def run(args: argparse.Namespace, measure: Measure | None = None) -> dict[str, Any]:
    """Run the comparison, print it, write it to `args.output` as JSON, and return it.

    measure: runs one system and returns its figures; by default in a process of its own. Raises
    InvalidConfigError for arguments that make no workload, MinipagedError where a system fails.
    """
    settings = settings_from(args)
    output = output_file(args.output)
    _check_threads(args.threads)
    console = DataConsole()
    if settings.model == DEFAULT_MODEL:
        ensure_default_model()
    results = head(asdict(settings), args.threads)
    report.print_head(console, results)
    measure = measure or _Apart(results["machine"]["threads"])
    results |= compare_systems(settings, measure, console)
    report.print_results(console, results)
    write_results(console, output, results)
    return results


def compare_systems(settings: Settings, measure: Measure, console: DataConsole) -> dict[str, Any]:
    """Measure all systems on one workload. One request at a time comes last, to judge the others' tokens."""
    order = [ENGINE, *(name for name in HF_BATCH_SIZES if name != ONE_AT_A_TIME), MOVED, ONE_AT_A_TIME]
    systems: dict[str, dict[str, Any]] = {}
    for name in order:
        tokens = {other: figures["tokens"] for other, figures in systems.items()}
        rivals = tokens if name == ONE_AT_A_TIME else {}
        systems[name] = _announced(console, measure, name, settings, rivals)
    profile = _announced(console, measure, PROFILE, settings, {})
    _check_same_workload(systems)
    first = systems[ENGINE]
    compared = systems[ONE_AT_A_TIME].pop("compared")
    best = max(HF_BATCH_SIZES, key=lambda name: systems[name]["tokens_per_second"])
    for figures in systems.values():
        figures["ratio_to_best_hf"] = figures["tokens_per_second"] / systems[best]["tokens_per_second"]
    workload = {key: first[key] for key in WORKLOAD_KEYS}
    for figures in systems.values():
        for key in (*WORKLOAD_KEYS, "tokens"):
            del figures[key]
    return {
        "workload": workload,
        "systems": {name: systems[name] for name in (ENGINE, *HF_BATCH_SIZES, MOVED)},
        "best_hf": best,
        "same_tokens_as_hf_1": compared,
        "engine_step": profile,
    }


def settings_from(args: argparse.Namespace) -> Settings:
    """The part of the command line that every system must know."""
    return Settings(**{name: getattr(args, name) for name in Settings.__dataclass_fields__})


def _announced(
    console: DataConsole, measure: Measure, name: str, settings: Settings, rivals: dict[str, list[list[int]]]
) -> dict[str, Any]:
    """Measure one system; say what is running while it runs, and how long it took in all."""
    start = time.perf_counter()
    with console.status(f"{report.TITLES[name]} ..."):
        figures = measure(name, settings, rivals)
    took = time.perf_counter() - start
    console.print(f"{report.TITLES[name]}: done in {took:.0f} s, with loading and warm-up", style="dim")
    return figures


def _check_same_workload(systems: dict[str, dict[str, Any]]) -> None:
    """Figures are worth comparing only where all systems had the same to do, on as many threads."""
    for key in (*WORKLOAD_KEYS, "dtype", "device", "threads"):
        if len({str(figures[key]) for figures in systems.values()}) != 1:
            raise MinipagedError(f"the systems did not run the same workload: {key} differs")


def _check_threads(threads: int | None) -> None:
    if threads is not None and threads < 1:
        raise InvalidConfigError(f"threads must be at least 1, got {threads}")


class _Apart:
    """`measure`, in a fresh process that gets its task on standard input and leaves a file behind."""

    def __init__(self, threads: int) -> None:
        self._environment = os.environ | dict.fromkeys(THREAD_SWITCHES, str(threads))

    def __call__(self, system: str, settings: Settings, rivals: dict[str, list[list[int]]]) -> dict[str, Any]:
        task = json.dumps({"system": system, "settings": asdict(settings), "rivals": rivals})
        with tempfile.TemporaryDirectory() as folder:
            result = Path(folder) / "result.json"
            process = subprocess.run(
                # -P: the folder we stand in is no place to import from, it may hold a `kernels`.
                [sys.executable, "-P", "-c", MEASURE_HERE, str(result)],
                input=task,
                capture_output=True,
                text=True,
                env=self._environment,
                check=False,
            )
            if process.returncode:
                lines = process.stderr.strip().splitlines() or [f"exit code {process.returncode}"]
                raise MinipagedError(f"{report.TITLES[system]} failed: {lines[-1]}")
            return json.loads(result.read_text())
