"""The systems of the comparison, and the process that each of them runs in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from minipaged.errors import MinipagedError

WORKER = Path(__file__).with_name("worker.py")
HOME = Path(__file__).parents[2] / ".peers"  # where `make bench-peers` installs what is compared with
CORES = "0-1"


@dataclass(frozen=True)
class System:
    """An engine with the options it runs with. `python` is None for the environment of minipaged itself."""

    engine: str
    dtype: str
    options: dict[str, Any] = field(default_factory=dict)
    python: Path | None = None

    @property
    def is_installed(self) -> bool:
        """Whether its environment is there."""
        return self.python is None or self.python.exists()


_VLLM = HOME / "vllm" / "bin" / "python"
_UNCACHED = {"enable_prefix_caching": False}  # each round runs the same prompts again
SYSTEMS = {
    "minipaged float32": System("minipaged", "float32", _UNCACHED),
    "minipaged float32 packed": System("minipaged", "float32", _UNCACHED | {"pack_weights": True}),
    "vLLM float32": System("vllm", "float32", _UNCACHED, _VLLM),
    "Hugging Face float32": System("transformers", "float32"),
    "minipaged bfloat16 plain": System("minipaged", "bfloat16", _UNCACHED | {"pack_weights": False}),
    "minipaged bfloat16": System("minipaged", "bfloat16", _UNCACHED),
    "vLLM bfloat16": System("vllm", "bfloat16", _UNCACHED, _VLLM),
}


class Worker:
    """A process that holds one system, and runs loads one after the other."""

    def __init__(self, name: str, process: subprocess.Popen[str], results: TextIO, log: Path) -> None:
        self._name = name
        self._process = process
        self._results = results
        self._log = log

    def run(self, prompts: list[list[int]], lengths: list[int], at_once: int) -> dict[str, Any]:
        """Run a load and return `seconds` and `tokens`. Raises MinipagedError where the process fails."""
        assert self._process.stdin is not None
        load = {"prompts": prompts, "lengths": lengths, "at_once": at_once}
        print(json.dumps(load), file=self._process.stdin, flush=True)
        return self.answer()

    def answer(self) -> Any:
        """What the process says next. Raises MinipagedError with the end of its log where it says nothing."""
        if line := self._results.readline():
            return json.loads(line)
        lines = self._log.read_text().strip().splitlines() or ["it printed nothing"]
        raise MinipagedError(f"{self._name} failed: {lines[-1]}")


@contextmanager
def started(name: str, model: str) -> Iterator[Worker]:
    """A process with the system called `name`, its model loaded; it ends with the block."""
    system = SYSTEMS[name]
    reading, writing = os.pipe()
    command = [str(system.python or sys.executable), "-P", str(WORKER), system.engine, model, system.dtype]
    with tempfile.TemporaryDirectory() as folder, open(reading) as results:
        log = Path(folder) / "log"
        with log.open("w") as output:
            process = subprocess.Popen(
                [*command, str(writing), json.dumps(system.options)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=[writing],
                text=True,
                env=_environment(system),
                cwd=folder,
            )
        os.close(writing)
        worker = Worker(name, process, results, log)
        try:
            worker.answer()
            yield worker
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()


def _environment(system: System) -> dict[str, str]:
    """vLLM at its best: bound to the cores, with Intel's OpenMP and, where it is installed, tcmalloc."""
    offline = os.environ | {"HF_HUB_OFFLINE": "1"}
    if system.engine != "vllm":
        return offline
    preloaded = [*(HOME / "vllm" / "lib").glob("libiomp5.so"), *Path("/usr/lib").glob("*/libtcmalloc*.so.4")]
    return offline | {
        "LD_PRELOAD": ":".join(map(str, preloaded)),
        "VLLM_CPU_KVCACHE_SPACE": "2",  # GiB
        "VLLM_CPU_OMP_THREADS_BIND": CORES,
        "VLLM_NO_USAGE_STATS": "1",
    }
