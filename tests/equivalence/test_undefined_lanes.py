"""No kernel counts on what a masked lane holds: each masked load says what it is, and tests run with poison.

conftest.py gives the poison of undefined_lanes.py to every test of this folder.
"""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

ROOT = Path(__file__).parents[2]
LESSONS = [path for path in sorted(ROOT.glob("lessons/*")) if path.name[:2] in ("10", "11")]


def loads_without_other(source: str) -> list[str]:
    """The masked `tl.load` calls of a file that leave the other lanes undefined."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    loads = [call for call in calls if ast.unparse(call.func).endswith("tl.load")]
    return [
        ast.unparse(load)
        for load in loads
        if (len(load.args) > 1 or any(keyword.arg == "mask" for keyword in load.keywords))
        and not (len(load.args) > 2 or any(keyword.arg == "other" for keyword in load.keywords))
    ]


@pytest.mark.parametrize("path", sorted(ROOT.glob("kernels/*.py")), ids=lambda path: path.name)
def test_every_masked_load_says_what_its_other_lanes_hold(path):
    assert loads_without_other(path.read_text()) == []


def test_a_load_that_leaves_lanes_undefined_is_seen():
    bad = ["tl.load(p, mask=m)", "tl.load(p, m)", "tl.load(p, mask=m, cache_modifier='.cg')"]
    good = ["tl.load(p)", "tl.load(p, mask=m, other=0)", "tl.load(p, m, 0)", "tl.store(p, x, mask=m)"]
    assert loads_without_other("\n".join(good + bad)) == bad


@triton.jit
def _copy_all_lanes(source_ptr, target_ptr, count, TILE: tl.constexpr):
    lanes = tl.arange(0, TILE)
    values = tl.load(source_ptr + lanes, mask=lanes < count)
    tl.store(target_ptr + lanes, values)


@triton.jit
def _copy_all_lanes_defined(source_ptr, target_ptr, count, TILE: tl.constexpr):
    lanes = tl.arange(0, TILE)
    values = tl.load(source_ptr + lanes, mask=lanes < count, other=0)
    tl.store(target_ptr + lanes, values)


@pytest.mark.skipif(isinstance(_copy_all_lanes, triton.JITFunction), reason="Triton is not interpreted")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int32, torch.int64])
def test_an_undefined_lane_holds_poison_here(dtype):
    source, target = torch.ones(4, dtype=dtype), torch.zeros(4, dtype=dtype)
    _copy_all_lanes[(1,)](source, target, 2, TILE=4)
    assert target[:2].tolist() == [1, 1]
    assert target[2:].isnan().all() if dtype.is_floating_point else (target[2:] > 2**29).all()
    _copy_all_lanes_defined[(1,)](source, target, 2, TILE=4)
    assert target.tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.name)
def test_the_answer_key_of_a_lesson_passes_with_poison(lesson):
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "undefined_lanes", lesson, "--solutions"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
