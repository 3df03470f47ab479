"""What `minipaged bench` prints: the machine, the table of systems, and where a step's time goes."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.table import Table

from ..errors import InvalidConfigError
from ..machine import usable_cores
from .bench_systems import ENGINE, MOVED, PROFILE
from .console import DataConsole
from .doctor import installed_versions

TITLES = {
    ENGINE: "minipaged",
    PROFILE: "minipaged, profiled",
    "hf-1": "HF, one at a time",
    "hf-8": "HF, batches of 8",
    "hf-32": "HF, batches of 32",
    MOVED: "the same, moved",
}


def output_file(name: str) -> Path:
    """Where results go, known to be writable before anything is measured. Raises InvalidConfigError."""
    output = Path(name)
    if output.is_dir() or not output.parent.is_dir():
        raise InvalidConfigError(f"output={name!r} is not a file in a folder that exists")
    check_writable("output", output)
    return output


def check_writable(name: str, path: Path) -> None:
    """Raise InvalidConfigError where nothing can be written to `path`. Leaves all as it was."""
    existed = path.exists()
    try:
        path.open("a").close()
    except OSError as error:
        raise InvalidConfigError(f"{name}={str(path)!r} can't be written: {error.strerror}") from None
    if not existed:
        path.unlink()


def head(settings: dict[str, Any], threads: int) -> dict[str, Any]:
    """What every file of results begins with: when, where, with which versions, and what was asked for."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(threads),
        "versions": versions(),
        "settings": settings,
    }


def write_results(console: DataConsole, output: Path, results: dict[str, Any]) -> None:
    """Keep every figure as JSON, and say where."""
    output.write_text(json.dumps(results, indent=1) + "\n")
    console.write((f"Every figure is in {output}.", "dim"))


def machine(threads: int) -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "threads": threads,
        "memory_bytes": _memory_bytes(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": f"{platform.system()} {platform.machine()}",
    }


def versions() -> dict[str, str | None]:
    """Of Python and of what the engine is built on; None for what is not installed."""
    return {"python": platform.python_version(), **installed_versions()}


def cpu_model() -> str:
    """The processor's name, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def print_head(console: DataConsole, results: dict[str, Any]) -> None:
    """The machine, the date and the requests, before anything runs."""
    machine, versions, settings = results["machine"], results["versions"], results["settings"]
    gpu = machine["gpu"] or "no GPU"
    console.print(
        f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads, "
        f"{machine['instructions']}, {gpu}; {results['date']}"
    )
    found = ", ".join(f"{name} {version or 'missing'}" for name, version in versions.items())
    console.print(found, style="dim")
    console.print(
        f"{settings['model']}, {settings['dtype']}, greedy: {settings['num_requests']} requests, "
        f"prompts of {settings['min_prompt']} to {settings['max_prompt']} tokens, outputs of exactly "
        f"{settings['min_output']} to {settings['max_output']}, seed {settings['seed']}"
    )


def print_results(console: DataConsole, results: dict[str, Any]) -> None:
    """All that was measured, for people."""
    console.print(_systems_table(results))
    _print_notes(console, results)
    _print_agreement(console, results)
    console.print(_step_table(results["engine_step"]))


def _systems_table(results: dict[str, Any]) -> Table:
    table = empty_table("One run: same requests, same threads")
    table.add_column("system", no_wrap=True)
    for name in ("tokens/s", "seconds", "× HF", "peak\nMiB", "KV\nMiB", "KV\nwaste", "same"):
        table.add_column(name, justify="right")
    for name, figures in results["systems"].items():
        compared = results["same_tokens_as_hf_1"].get(name)
        table.add_row(
            TITLES[name],
            f"{figures['tokens_per_second']:.1f}",
            f"{figures['seconds']:.1f}",
            f"{figures['ratio_to_best_hf']:.2f}",
            mebibytes(figures["memory"]["run_bytes"]),
            mebibytes(figures["kv_cache"]["reserved_bytes"]),
            f"{figures['kv_cache']['waste']:.1%}",
            str(len(compared["same"])) if compared else "–",
            style="bold" if name == ENGINE else None,
        )
    return table


def _print_notes(console: DataConsole, results: dict[str, Any]) -> None:
    """How to read the table."""
    workload, systems = results["workload"], results["systems"]
    engine, fastest = systems[ENGINE], systems[results["best_hf"]]
    cache = engine["kv_cache"]
    num_requests = len(workload["output_lengths"])
    notes = [
        f"tokens/s counts the {workload['num_output_tokens']} tokens asked for. HF is transformers' generate "
        "with its default cache. Its batches are formed in order of arrival, padded on the left, and run to "
        "the longest of their outputs.",
        f"× HF is the ratio to the fastest of the HF runs ({TITLES[results['best_hf']]}) as "
        "transformers loads it. The last row has its weights moved into huge pages, as minipaged does on "
        "a CPU.",
        "peak MiB is above what was in use before the run: "
        f"{mebibytes(engine['memory']['before_bytes'])} MiB for minipaged, "
        f"{mebibytes(fastest['memory']['before_bytes'])} MiB for HF, with weights of "
        f"{mebibytes(engine['weight_bytes'])} MiB.",
        "KV MiB is the most that was reserved: for minipaged the blocks in use (of a pool of "
        f"{mebibytes(cache['pool_bytes'])} MiB, whose unused blocks take no memory on a CPU), for HF the "
        "largest cache of a batch.",
        "KV waste is the share of reserved slots, over all steps, that hold no token, padding, or a token "
        "past the request's end. Had each request reserved the model's longest sequence, minipaged would "
        f"waste {cache['waste_if_reserved']:.1%}.",
        f"same counts the requests, of {num_requests}, whose tokens are those of HF one at a time.",
    ]
    for note in notes:
        console.print(note, style="dim")


def _print_agreement(console: DataConsole, results: dict[str, Any], most: int = 5) -> None:
    """Where tokens differ from those of one request at a time, and by how little the choice fell."""
    for name, found in results["same_tokens_as_hf_1"].items():
        different = found["different"]
        for one in different[:most]:
            console.print(
                f"{TITLES[name]}: request {one['request']} differs from output token {one['position']} on. "
                f"There the logits of the two choices are {one['logit_gap']:.1e} apart, the top two "
                f"{one['top2_gap']:.1e}."
            )
        if len(different) > most:
            console.print(f"{TITLES[name]}: {len(different) - most} more differ.")


def _step_table(profile: dict[str, Any]) -> Table:
    table = empty_table("Where minipaged's time goes (a run of its own, with stopwatches)")
    table.add_column("part of a step", no_wrap=True)
    for name in ("seconds", "ms/step", "share"):
        table.add_column(name, justify="right")
    total = profile["step_seconds"]
    for name, seconds in profile["parts"].items():
        table.add_row(
            name, f"{seconds:.2f}", f"{1000 * seconds / profile['num_steps']:.2f}", f"{seconds / total:.1%}"
        )
    return table


def empty_table(title: str, names: Iterable[str] = ()) -> Table:
    """A table that is narrow enough for 80 columns, with a column of numbers for each of the names."""
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in names:
        table.add_column(name, justify="right")
    return table


def mebibytes(count: int | None) -> str:
    """A number of bytes in MiB; a dash where it could not be measured."""
    return "–" if count is None else f"{count / 2**20:.1f}"


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not POSIX
        return None
