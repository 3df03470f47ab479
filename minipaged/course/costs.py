"""What a version of a lesson's functions costs: operations of plain Python, or what a kernel's launches do.

Both are counted, not timed, so each run gives the same numbers. Plain Python is counted over the lesson's own
tests (counting.py). A kernel is interpreted on one small input of this file (memory_map.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np

from ..errors import InvalidRequestError
from .manifest import Lesson
from .memory_map import recording

Costs = dict[str, int]
# The tests that are counted, as pytest's -k names them. All others of lesson 13 need a model.
_COUNTED = {"serve_a_model": "not tiny_model and not smollm2"}


@dataclass(frozen=True)
class Workload:
    """One small input for the kernels of a lesson."""

    words: str
    programs: str  # what a launch is made of
    launch: Callable[[ModuleType], object]


def is_kernel(lesson: Lesson) -> bool:
    """Whether a lesson's functions run as kernels."""
    return lesson.name in WORKLOADS


def explanation(lesson: Lesson) -> str:
    """Say what is counted, and over which input."""
    if is_kernel(lesson):
        workload = WORKLOADS[lesson.name]
        return f"{workload.words}. An element counts each time that one of the {workload.programs} uses it."
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return (
        f"The lesson's tests, run once. An operation is an instruction of Python {version}'s bytecode in "
        "these functions, or in what they call in the same file. Built-in functions and other modules do not "
        "count."
    )


def costs(lesson: Lesson, path: Path | None, module: ModuleType) -> Costs:
    """Return what a version costs: the exercise at `path`, or the answer key for None, imported as `module`.

    Raises InvalidRequestError if the operations can't be counted, because pytest or a test fails.
    """
    if is_kernel(lesson):
        return kernel_costs(WORKLOADS[lesson.name], module)
    return {"operations": _num_operations(lesson, path)}


def kernel_costs(workload: Workload, module: ModuleType) -> Costs:
    """Return what the kernels of a module do on an input."""
    with recording() as recorded:
        workload.launch(module)
    return {
        "launches": len(recorded.launches),
        workload.programs: sum(launch.num_programs for launch in recorded.launches),
        "bytes read": recorded.num_bytes["read"],
        "bytes written": recorded.num_bytes["wrote"],
    }


def _num_operations(lesson: Lesson, path: Path | None) -> int:
    """Run the lesson's tests in a process of their own, and return the number of operations."""
    graded = f"--submission={path}" if path else "--solutions"
    plugins = ["-p", "minipaged.course.counting", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *plugins, "--same-process", str(lesson.path), graded]
    if lesson.name in _COUNTED:
        command += ["-k", _COUNTED[lesson.name]]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "operations"
        # The order of a set of strings depends on the seed.
        environment = os.environ | {"PYTHONHASHSEED": "0"}
        run = subprocess.run(
            [*command, f"--count-into={file}"], capture_output=True, check=False, env=environment
        )
        if run.returncode:
            raise InvalidRequestError(
                f"lesson {lesson.number}: no operations are counted, because pytest fails meanwhile"
            )
        return int(file.read_text(encoding="utf-8"))


def _slots(kernels: ModuleType) -> None:
    """Lesson 10: the slots of 5 and 3 tokens, in blocks of 4, and the K and V of all of them."""
    import torch

    tables = torch.tensor([[2, 0], [1, -1]], dtype=torch.int32)
    positions = torch.tensor([0, 1, 2, 3, 4, 0, 1, 2])
    sequences = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1])
    slots = kernels.launch_slot_mapping(tables, positions, sequences, 4)
    tokens, pool = torch.zeros(2, 8, 2, 4), torch.zeros(2, 3, 4, 2, 4)
    kernels.launch_write_kv(*tokens, *pool, slots)


def _decode(kernels: ModuleType) -> None:
    """Lesson 11: a context of two splits, and a short one."""
    import torch

    tables = torch.arange(2 * 19, dtype=torch.int32).view(2, 19)
    pool = torch.zeros(2, 2 * 19, 16, 2, 16)
    lengths = torch.tensor([300, 20], dtype=torch.int32)
    kernels.decode_attention(torch.zeros(2, 4, 16), *pool, tables, lengths, scale=0.25)


def _copies(kernels: ModuleType) -> None:
    """Lesson 12: two pairs of blocks, with more words than a thread block has threads."""
    pool = np.zeros((4, 600), dtype=np.int64)
    kernels.launch_copy_blocks(pool, pool, np.array([[0, 2], [1, 3]]))


WORKLOADS = {
    "slot_mapping_kernel": Workload(
        "8 tokens of 2 sequences: their slots, then their K and V of 2 heads of 4 float32", "programs", _slots
    ),
    "paged_decode_kernel": Workload(
        "One decode step: contexts of 300 and 20 tokens, 4 heads, 2 KV heads of 16 float32",
        "programs",
        _decode,
    ),
    "block_copy_kernel": Workload("2 pairs of blocks of 600 words of 8 bytes", "threads", _copies),
}
