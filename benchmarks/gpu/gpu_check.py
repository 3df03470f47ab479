"""On a machine with a CUDA device: test the compiled kernels, time them, and write down what came out.

    python benchmarks/gpu/gpu_check.py        (or `make gpu-check`)

It needs an environment with torch, triton, numba-cuda and pytest, no network and no installation: it runs
from the checkout. First the equivalence tests, with the kernels compiled and not interpreted; then timings,
against torch's own functions and against what the device's memory and arithmetic allow. The results go to
benchmarks/results/gpu-<name of the GPU>.json. Exit code 0 where all went well, slower than torch or not; 1
where there is no CUDA device, a test failed or did not run, or a case could not be timed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import gpu_report
from gpu_outcomes import FILE_SWITCH

ROOT = Path(__file__).parents[2]
SWITCHES = ("TRITON_INTERPRET", "NUMBA_ENABLE_CUDASIM")
PACKAGES = ("torch", "triton", "numba", "numba-cuda", "pytest")
GRACE_SECONDS = 15  # between asking the tests to end and ending them
WORKER_GIB = 12  # of device memory that a process of tests may come to hold


def main(arguments: Sequence[str] | None = None) -> int:
    """Check and time; returns the exit code."""
    options = parse(arguments)
    trouble = missing()
    if trouble:
        print(f"gpu-check: {trouble}", file=sys.stderr)
        return 1
    for switch in SWITCHES:
        if os.environ.pop(switch, None) is not None:
            print(f"{switch} was set: unset here, compiled kernels are to be checked.")
    machine = describe()
    print(", ".join(f"{name} {value}" for name, value in machine.items()), flush=True)
    tests = None
    if options.test_seconds > 0:
        tests = run_tests(options.tests, options.test_seconds, num_workers(float(machine["memory_gib"])))
        gpu_report.print_outcomes(tests)
    rates, rows = time_kernels(options.timing_seconds)
    print("rates of this device: " + ", ".join(f"{name} {rate:.3g}" for name, rate in rates.items()))
    print(gpu_report.table(rows))
    output = options.output or ROOT / "benchmarks" / "results" / gpu_report.file_name(machine["gpu"])
    gpu_report.write(output, machine, tests, rates, rows)
    print(f"\nwritten to {output}")
    return exit_code(tests, rows)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line's arguments; argparse ends the process for a wrong one."""
    parser = argparse.ArgumentParser(description="Test and time the kernels on this machine's CUDA device.")
    parser.add_argument(
        "--output", type=Path, help="the JSON file; by default benchmarks/results/gpu-<name>.json"
    )
    parser.add_argument("--tests", type=Path, default=ROOT / "tests" / "equivalence", help="what pytest runs")
    parser.add_argument(
        "--test-seconds", type=_seconds, default=200, help="at most so long for the tests; 0 runs none"
    )
    parser.add_argument(
        "--timing-seconds", type=_seconds, default=100, help="no case is begun after so long; 0 times nothing"
    )
    return parser.parse_args(arguments)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of seconds, 0 or more, got {text}")
    return value


def missing() -> str:
    """What this machine lacks, in one line; empty where the check can run."""
    for name in ("torch", "triton", "numba", "pytest"):
        if importlib.util.find_spec(name) is None:
            return f"a CUDA device with {', '.join(PACKAGES)} is needed; {name} is not installed here"
    import torch

    if not torch.cuda.is_available() or torch.version.cuda is None:
        return "a CUDA device is needed, torch finds none on this machine"
    return ""


def describe() -> dict[str, str]:
    """What was measured, and with which versions."""
    import torch

    return {
        "gpu": torch.cuda.get_device_name(),
        "capability": ".".join(map(str, torch.cuda.get_device_capability())),
        "memory_gib": f"{torch.cuda.get_device_properties(0).total_memory / 2**30:.1f}",
        "driver": _driver(),
        "cuda": str(torch.version.cuda),
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return (said.split() or ["unknown"])[0]


def num_workers(memory_gib: float) -> int:
    """How many processes of tests share the device: by its memory and the cores, at most 8."""
    return max(1, min(8, int(memory_gib // WORKER_GIB), (os.cpu_count() or 1) // 2))


def run_tests(tests: Path, seconds: float, num_workers: int = 1) -> dict[str, Any]:
    """Run pytest on `tests` for at most `seconds`; counts, failures and skips, of those that came to an end.

    The options of pyproject.toml are left out, since plugins that they name may not be installed here. Where
    pytest-xdist is, several processes share the device: most of the time goes into compiling.
    """
    with tempfile.TemporaryDirectory() as folder:
        outcomes, output = Path(folder) / "outcomes", Path(folder) / "output"
        outcomes.touch()
        command = [sys.executable, "-m", "pytest", str(tests), "-q", "--continue-on-collection-errors"]
        command += ["-o", "addopts=--import-mode=importlib", "-p", "gpu_outcomes", "-p", "no:cacheprovider"]
        if num_workers > 1 and importlib.util.find_spec("xdist"):
            command += ["-n", str(num_workers)]
        # Without the switches, and as no part of a run of pytest that this process may be part of.
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
        environment = {key: value for key, value in inherited.items() if key not in SWITCHES}
        environment[FILE_SWITCH] = str(outcomes)
        environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), str(ROOT)])
        start = time.monotonic()
        with output.open("w") as log:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
            )
            code = _wait(process, seconds)
        taken = time.monotonic() - start
        results = gpu_report.read_outcomes(outcomes.read_text().splitlines())
        said = output.read_text().strip().splitlines() or ["nothing"]
    ended = code in (0, 1)  # all passed, or some failed; anything else is pytest's own trouble
    errors = [line for line in said if line.startswith("ERROR")] or said[-1:]
    complaint = "" if ended or code is None else errors[0]
    return results | {"seconds": round(taken, 1), "ended": ended, "complaint": complaint}


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """The exit code; or None, and the end of the process and all that it has started, when time is over."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        pass
    for kind in (signal.SIGINT, signal.SIGKILL):
        try:
            os.killpg(process.pid, kind)
            process.wait(GRACE_SECONDS)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
    return None


def time_kernels(seconds: float) -> tuple[dict[str, float], list[gpu_report.Timing]]:
    """The device's rates and a row for each case; nothing where there is no time for it."""
    if seconds == 0:
        return {}, []
    sys.path.append(str(ROOT))  # where minipaged is not installed
    import gpu_timings

    deadline = time.monotonic() + seconds
    meter = gpu_timings.CudaMeter()
    rates = gpu_timings.measure_rates(meter)
    return rates._asdict(), gpu_timings.run_cases(gpu_timings.cases(meter, rates), deadline)


def exit_code(tests: dict[str, Any] | None, rows: Sequence[gpu_report.Timing]) -> int:
    """0 unless a test failed, tests did not come to their end or none passed, or a case has no time."""
    tests_right = tests is None or (tests["ended"] and not tests["failed"] and tests["passed"] > 0)
    return 0 if tests_right and not any(row.failure for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
