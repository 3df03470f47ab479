"""`minipaged doctor`: run everything once, to see what this machine can run.

Every attention backend attends over a few scattered blocks and is compared with dense attention in float64.
Writing K and V and copying blocks are tried as well. A failure takes one line, never a traceback.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from ..config import BACKENDS
from ..errors import BackendUnavailableError
from ..terminal.console import DataConsole

PACKAGES = ("torch", "transformers", "triton", "numba", "numba-cuda", "numpy")


class Finding(NamedTuple):
    """One line of the report. `ok` is None for a fact, which is neither good nor bad."""

    what: str
    ok: bool | None
    detail: str


def doctor() -> None:
    """Print what this machine has and what runs on it.

    Raises BackendUnavailableError, after printing, where the engine can't run.
    """
    console = DataConsole()
    for finding in facts():
        _print(console, finding)
    console.print()
    needed = []
    for finding, is_needed in checks():
        _print(console, finding)
        if is_needed and not finding.ok:
            needed.append(finding.what)
    console.print()
    if needed:
        raise BackendUnavailableError(f"the engine can't run here: see {', '.join(needed)} above")
    console.print("The engine can run here.", style="green")


def installed_versions() -> dict[str, str | None]:
    """Return the version of each package that the engine is built on; None if it is not installed."""
    versions: dict[str, str | None] = dict.fromkeys(PACKAGES)
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def facts() -> list[Finding]:
    """Return what the machine has: versions, devices, threads, and the default model."""
    system = f"{platform.system()} {platform.machine()}"
    return [
        Finding("Python", None, f"{platform.python_version()} on {system}"),
        *(_ask(name, partial(_version, name, version)) for name, version in installed_versions().items()),
        _ask("GPU", _gpu),
        _ask("Triton", _triton),
        _ask("Numba CUDA", _numba_cuda),
        _ask("threads", _threads),
        _ask("default model", _default_model),
    ]


def checks() -> list[tuple[Finding, bool]]:
    """Try everything once. Return each finding, and whether the engine depends on it here."""
    problem = _import_problem("torch")
    if problem is not None:
        return [(Finding("torch", False, problem), True)]
    import torch

    from .doctor_checks import check_attention, check_copy_blocks, check_write_kv

    cpu = torch.device("cpu")
    best = torch.device("cuda") if torch.cuda.is_available() else cpu
    chosen = "numba" if best == cpu else "triton"
    findings = [(_try("engine", _import_engine), True)]
    for name in BACKENDS[1:]:
        check = partial(check_attention, name, best if name == "triton" else cpu)
        findings.append((_try(f"attention, {name}", check), name == chosen))
    findings.append((_try("write_kv", partial(check_write_kv, best)), True))
    findings.append((_try("copy_blocks", partial(check_copy_blocks, best)), True))
    return findings


# ---------------------------------------------------------------------- facts


def _version(name: str, version: str | None) -> str:
    return version or _why_missing(name)


def _why_missing(name: str) -> str:
    if name == "triton" and sys.platform != "linux":
        return "not installed: it exists for Linux only, and all but Triton works without it"
    if name == "numba-cuda":
        return f"not installed: Numba's kernels need it on a GPU (pip install 'minipaged[{gpu_extra()}]')"
    return "not installed"


def _gpu() -> str:
    import torch

    if not torch.cuda.is_available():
        return "none"
    if torch.version.hip is not None:
        return torch.cuda.get_device_name()
    major, minor = torch.cuda.get_device_capability()
    driver = _driver_version()
    return (
        f"{torch.cuda.get_device_name()}, compute capability {major}.{minor}; torch is built for CUDA "
        f"{torch.version.cuda}, the driver takes up to {driver[0]}.{driver[1]}: extra {gpu_extra()}"
    )


def gpu_extra() -> str:
    """Return the extra whose numba-cuda fits this machine: no newer than the driver and torch's CUDA."""
    import torch

    build = int((torch.version.cuda or "13").split(".")[0])
    driver = _driver_version()[0] if torch.cuda.is_available() else build
    return "gpu-cu12" if min(build, driver) <= 12 else "gpu-cu13"


def _driver_version() -> tuple[int, int]:
    """Return the newest CUDA version that the driver takes."""
    import torch

    version = torch._C._cuda_getDriverVersion()  # type: ignore[attr-defined]  # 12080 is 12.8
    return version // 1000, version % 1000 // 10


def _triton() -> str:
    is_interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if not is_interpreted and _gpu() == "none":
        return "not available: there is no GPU, and TRITON_INTERPRET=1 is not set"
    if problem := _import_problem("triton"):
        return f"not available: {problem}"
    return "interpreted (slow: for tests and lessons)" if is_interpreted else "compiled"


def _numba_cuda() -> str:
    from numba import config, cuda

    if config.ENABLE_CUDASIM:
        return "simulated (slow: for tests and lessons)"
    if cuda.is_available():
        return "compiled"
    return "not available: there is no GPU that Numba can use, and NUMBA_ENABLE_CUDASIM=1 is not set"


def _threads() -> str:
    import numba
    import torch

    return f"torch {torch.get_num_threads()}, numba {numba.get_num_threads()}, of {os.cpu_count()} processors"


def _default_model() -> str:
    from ..models.default_model import DEFAULT_MODEL, default_model_folder

    folder = default_model_folder()
    if not folder.is_dir():
        return f"{DEFAULT_MODEL} is not fetched yet; it will go to {folder}"
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return f"{DEFAULT_MODEL}, {size / 1e6:.0f} MB in {folder}"


def _import_engine() -> str:
    from .. import llm

    importlib.import_module("minipaged.engine.engine")  # `LLM` itself imports this with its first model
    return f"{llm.LLM.__name__} and all that it needs can be imported"


# ---------------------------------------------------------------------- checks that never raise


def _ask(what: str, ask: Callable[[], str]) -> Finding:
    try:
        return Finding(what, None, ask())
    except Exception as error:
        return Finding(what, None, f"can't be told: {_first_line(error)}")


def _try(what: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(what, True, check())
    except Exception as error:
        return Finding(what, False, _first_line(error))


def _import_problem(name: str) -> str | None:
    """Return why a module can't be imported, or None. A broken installation may raise anything."""
    try:
        importlib.import_module(name)
    except Exception as error:
        return f"{name} can't be imported: {_first_line(error)}"
    return None


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _print(console: DataConsole, finding: Finding) -> None:
    verdict = {None: (), True: (("OK", "green"), "  "), False: (("no", "red"), "  ")}[finding.ok]
    console.write(f"{finding.what:<21}", *verdict, finding.detail)
