"""What every file of results begins with, and what is printed of it."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from minipaged.cli.doctor import installed_versions
from minipaged.simulator.processes import usable_cores
from minipaged.terminal.console import DataConsole
from minipaged.terminal.results import empty_table


def add_output_argument(parser: argparse.ArgumentParser, bench: str) -> None:
    """The file of results."""
    default = f"bench-{bench}-results.json"
    parser.add_argument("--output", default=default, metavar="FILE", help="where the JSON goes")


def head(settings: dict[str, Any], threads: int | None = None) -> dict[str, Any]:
    """When, where, with which versions, and what was asked for. threads: torch's own number if None."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(threads),
        "versions": {"python": platform.python_version(), **installed_versions()},
        "settings": settings,
    }


def machine(threads: int | None = None) -> dict[str, Any]:
    """What the figures were measured on."""
    import torch  # not before a bench runs: its help must not wait for it

    return {
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "threads": threads or torch.get_num_threads(),
        "memory_bytes": _memory_bytes(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": f"{platform.system()} {platform.machine()}",
    }


def cpu_model() -> str:
    """The processor's name, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def print_machine(console: DataConsole, results: dict[str, Any]) -> None:
    """Where and when the results were measured, in a line."""
    machine = results["machine"]
    console.print(
        f"{machine['cpu']}, {machine['threads']} threads, {machine['gpu'] or 'no GPU'}, {results['date']}",
        markup=False,
    )


def print_limits(console: DataConsole, results: dict[str, Any]) -> None:
    """What `machine_limits` found that the machine can do at most, in a line."""
    limits = ", ".join(f"{name} {value:.1f}" for name, value in results["limits"].items())
    console.print(limits, markup=False)


def print_table(
    console: DataConsole, title: str, names: Sequence[str], rows: Sequence[Sequence[str]]
) -> None:
    """Columns of numbers under a title."""
    table = empty_table(title, names)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def mebibytes(count: int | None) -> str:
    """A number of bytes in MiB; a dash where it could not be measured."""
    return "–" if count is None else f"{count / 2**20:.1f}"


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not POSIX
        return None
