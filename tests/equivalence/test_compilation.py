"""Interpreted is not compiled: every Triton and Numba kernel is compiled ahead of time, with no GPU.

compile_kernels.py does the compiling, in a process of its own. What each kernel takes of a GPU is written to
docs/kernel_resources.md.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

PAGE = Path(__file__).parents[2] / "docs" / "kernel_resources.md"
SCRIPT = Path(__file__).with_name("compile_kernels.py")
INTRODUCTION = """# What the kernels take of a GPU

`tests/equivalence/test_compilation.py` writes this page. It compiles every kernel ahead of time, with no GPU.
A row is one kernel as one call launches it. A column is the GPU that it was compiled for: compute capability
8.0 (A100), 9.0 (H100, H200) and 10.0 (B200), or gfx942 (MI300). A cell holds three numbers:

1. The registers of a thread. It can have at most 255 (512 on gfx942). A multiprocessor of NVIDIA's has 65,536
   registers, so with 128 per thread at most 512 threads run on it at once.
2. The bytes that a thread spills, because its registers cannot hold them (its stack frame, on AMD its private
   segment). They go through the caches to memory and back, often in the inner loop.
3. The bytes of shared memory of a block of threads. They are not there for another block of threads.

A launch that spills has too large a tile or too few warps. A test forbids it in float16 and bfloat16 on
compute capability 9.0. Elsewhere the page only reports it.
"""


def compile_kernels(tool: str) -> dict[str, Any]:
    """What compile_kernels.py says of `triton` or `numba`; skips where Numba lacks NVIDIA's compiler."""
    switches = ("TRITON_INTERPRET", "NUMBA_ENABLE_CUDASIM")
    environment = {key: value for key, value in os.environ.items() if key not in switches}
    done = subprocess.run(
        [sys.executable, SCRIPT, tool], env=environment, capture_output=True, text=True, check=False
    )
    if tool == "numba" and ("NotFound" in done.stderr or "cannot be found" in done.stderr):
        pytest.skip("PTX needs NVRTC and NVVM: a CUDA toolkit, or pip install nvidia-cuda-nvrtc nvidia-nvvm")
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def table(rows: list[dict[str, Any]]) -> str:
    """A line for each kernel, call and dtype, a column for each target."""
    targets = list(dict.fromkeys(row["target"] for row in rows))
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        line = lines.setdefault((f"`{row['kernel']}`", row["call"], row["dtype"]), {})
        line[row["target"]] = f"{row['registers']}, {row['spilled']}, {row['shared']}"
    cells = [["kernel", "launched for", "dtype", *targets], ["---"] * (3 + len(targets))]
    cells += [[*key, *(line.get(target, "") for target in targets)] for key, line in lines.items()]
    return "".join(f"| {' | '.join(line)} |\n".replace("  ", " ") for line in cells)


def updated(page: str, tool: str, version: str, rows: list[dict[str, Any]]) -> str:
    """The page with the section of this tool renewed, unless another version of the tool wrote it."""
    _, *sections = page.split("\n## ")
    by_tool = {section.split()[0]: section.rstrip() for section in sections}
    if by_tool.get(tool, f"{tool} {version}\n").partition("\n")[0] == f"{tool} {version}":
        by_tool[tool] = f"{tool} {version}\n\n{table(rows)}".rstrip()
    return "\n## ".join([INTRODUCTION, *(by_tool[tool] + "\n" for tool in sorted(by_tool))])


def update_page(tool: str, version: str, rows: list[dict[str, Any]]) -> None:
    """Write docs/kernel_resources.md where it is missing or says something else."""
    with FileLock(Path(tempfile.gettempdir()) / "minipaged-kernel-resources.lock"):
        before = PAGE.read_text() if PAGE.exists() else ""
        after = updated(before, tool, version, rows)
        if after != before:
            PAGE.parent.mkdir(exist_ok=True)
            PAGE.write_text(after)


def test_every_triton_kernel_compiles_for_every_target_and_spills_nothing_where_it_matters():
    report = compile_kernels("triton")
    rows = report["rows"]
    assert not report["unreached"], "no call in compile_kernels.py launches these"
    compiled = {(row["kernel"], row["dtype"], row["target"]) for row in rows}
    targets = {"cuda 80", "cuda 90", "cuda 100", "hip gfx942"}
    floats = {"float16", "bfloat16", "float32", "float64"}
    for kernel in {row["kernel"] for row in rows}:
        dtypes = {dtype for name, dtype, _ in compiled if name == kernel}
        assert dtypes in ({""}, floats), kernel  # a kernel takes all of them, or no floats at all
        assert compiled >= {(kernel, dtype, target) for dtype in dtypes for target in targets}, kernel
    halves = [row for row in rows if row["target"] == "cuda 90" and row["dtype"] in ("float16", "bfloat16")]
    assert len({row["kernel"] for row in halves}) >= 4
    assert not [row for row in halves if row["spilled"]]
    assert all(0 < row["registers"] <= 512 for row in rows)
    update_page("Triton", report["version"], rows)


def test_every_numba_kernel_compiles_to_ptx_with_8_byte_stores():
    report = compile_kernels("numba")
    assert not report["unreached"], "no call in compile_kernels.py launches these"
    assert {row["target"] for row in report["rows"]} == {"cuda 80", "cuda 90"}
    assert {row["widest_store"] for row in report["rows"]} == {64}
    assert not any(row["spilled"] for row in report["rows"])
    update_page("numba-cuda", report["version"], report["rows"])


ROW = {"kernel": "k", "call": "c", "dtype": "float16", "target": "cuda 90"}
ROW |= {"registers": 32, "spilled": 0, "shared": 64}


def test_a_section_is_renewed_by_the_version_that_wrote_it_and_no_other():
    page = updated("", "Triton", "3.9.0", [ROW])
    assert page.endswith("\n## Triton 3.9.0\n\n| kernel | launched for | dtype | cuda 90 |\n"
                         "| --- | --- | --- | --- |\n| `k` | c | float16 | 32, 0, 64 |\n")  # fmt: skip
    both = updated(page, "numba-cuda", "0.30", [ROW])
    assert both.startswith(page)
    changed = [ROW | {"registers": 33}]
    assert updated(both, "Triton", "3.8.0", changed) == both
    assert updated(both, "Triton", "3.9.0", changed) == both.replace("32, 0, 64", "33, 0, 64", 1)
