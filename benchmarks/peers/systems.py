"""The systems of the comparison, and the process that each of them runs in."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from minipaged.errors import MinipagedError

WORKER = Path(__file__).with_name("worker.py")
HOME = Path(__file__).parents[2] / ".peers"  # where `make bench-peers` installs what is compared with
POOL = 2 << 30  # bytes of K and V, which the longest load fits into
PAGE = 256  # tokens, of Hugging Face's continuous batching
PAGE_BYTES = PAGE * 46_080  # of the default model in float32


@dataclass(frozen=True)
class System:
    """An engine with the options it runs with. `python` is None for the environment of minipaged itself."""

    engine: str
    dtype: str
    options: dict[str, Any] = field(default_factory=dict)
    python: Path | None = None
    slow: bool = False  # or of less interest: it runs once, where the others run several times

    def why_not(self) -> str | None:
        """Why it can't be measured on this machine, or None."""
        if self.python is not None and not self.python.exists():
            return "not installed, see `make bench-peers`"
        if self.dtype == "bfloat16":
            from ..shared.limits import has_bfloat16_units  # torch: the help must not wait for it

            if not has_bfloat16_units():
                return "not measured here: this processor has no bfloat16 units"
        return None

    def options_for(self, model: str, prefix_cache: bool) -> dict[str, Any]:
        """What worker.py gives to the engine, prefix caches on or off."""
        if self.engine in ("minipaged", "vllm"):
            return self.options | {"enable_prefix_caching": prefix_cache}
        if self.engine == "continuous":
            return self.options | {"allow_block_sharing": prefix_cache}
        if self.engine == "llama.cpp":
            return self.options | {"gguf": str(gguf_file(model))}
        return self.options


_VLLM = HOME / "vllm" / "bin" / "python"
_LLAMA = HOME / "llama" / "bin" / "python"
_POOL = {"kv_cache_memory": POOL}
_PAGES = {"page_size": PAGE, "num_blocks": POOL // PAGE_BYTES, "max_batch_tokens": 2048}
_FUSED = {"pack_weights": True, "fuse_modules": True}
SYSTEMS = {
    "minipaged float32": System("minipaged", "float32", _POOL),
    "minipaged float32 packed": System("minipaged", "float32", _POOL | {"pack_weights": True}),
    "minipaged float32 fused": System("minipaged", "float32", _POOL | _FUSED),
    "vLLM float32": System("vllm", "float32", {}, _VLLM),
    "llama.cpp F32": System("llama.cpp", "float32", {}, _LLAMA, slow=True),
    "Hugging Face float32": System("transformers", "float32", slow=True),
    "Hugging Face continuous float32": System("continuous", "float32", _PAGES, slow=True),
    "minipaged bfloat16 plain": System("minipaged", "bfloat16", _POOL | {"pack_weights": False}, slow=True),
    "minipaged bfloat16": System("minipaged", "bfloat16", _POOL),
    "minipaged bfloat16 fused": System("minipaged", "bfloat16", _POOL | _FUSED),
    "vLLM bfloat16": System("vllm", "bfloat16", {}, _VLLM),
}


def cores() -> str:
    """The cores that this process may run on, as vLLM takes them: "0-1", or "0,2-3"."""
    runs: list[list[int]] = []
    for core in sorted(os.sched_getaffinity(0)):
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def gguf_file(model: str) -> Path:
    """Where llama.cpp's copy of a model lies. A folder that changes its weights gets another file."""
    weights = sorted(Path(model).glob("*.safetensors"))
    stamp = [str(Path(model).resolve()), *(f"{file.name} {file.stat().st_mtime_ns}" for file in weights)]
    return HOME / "models" / f"{hashlib.sha256(repr(stamp).encode()).hexdigest()[:16]}.gguf"


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
        with suppress(BrokenPipeError):  # it has ended: its log says why
            print(json.dumps(load), file=self._process.stdin, flush=True)
        return self.answer()

    def answer(self) -> Any:
        """What the process says next. Raises MinipagedError with the end of its log where it says nothing."""
        if line := self._results.readline():
            return json.loads(line)
        lines = self._log.read_text().strip().splitlines() or ["it printed nothing"]
        raise MinipagedError(f"{self._name} failed: {lines[-1]}")


@contextmanager
def started(name: str, model: str, prefix_cache: bool) -> Iterator[Worker]:
    """A process with the system called `name`, its model loaded; it ends with the block."""
    system = SYSTEMS[name]
    reading, writing = os.pipe()
    command = [str(system.python or sys.executable), "-P", str(WORKER), system.engine, model, system.dtype]
    with tempfile.TemporaryDirectory() as folder, open(reading) as results:
        log = Path(folder) / "log"
        with log.open("w") as output:
            process = subprocess.Popen(
                [*command, str(writing), json.dumps(system.options_for(model, prefix_cache))],
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
            with suppress(BrokenPipeError):
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
    names = ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4")  # not the debug libraries beside them
    allocators = [path for name in names for path in Path("/usr/lib").glob(f"*/{name}")]
    preloaded = [*(HOME / "vllm" / "lib").glob("libiomp5.so"), *allocators[:1]]
    return offline | {
        "LD_PRELOAD": ":".join(map(str, preloaded)),
        "VLLM_CPU_KVCACHE_SPACE": str(POOL >> 30),
        "VLLM_CPU_OMP_THREADS_BIND": cores(),
        "VLLM_NO_USAGE_STATS": "1",
    }
