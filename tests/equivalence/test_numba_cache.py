"""Machine code that Numba kept on disk is used again only for the very sources that it was made from."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from minipaged.kernels import _numba

KERNELS = Path(__file__).parents[2] / "kernels"
# Stands for attention_cpu.py, which takes long to compile.
ENTRY = """
from ._numba import entry
from . import _vector
@entry
def call(scores):
    _vector.finish_scores(scores, 3.0, 0.0)
"""
CALL = """
import numpy as np
from copied.attention_cpu import call
scores = np.ones(1)
call(scores)
print(scores[0], sum(call.stats.cache_hits.values()))
"""


def test_an_edited_primitive_gives_new_results(tmp_path):
    copied = tmp_path / "copied"
    shutil.copytree(KERNELS, copied, ignore=shutil.ignore_patterns("__pycache__"))
    (copied / "attention_cpu.py").write_text(ENTRY)

    def run() -> str:
        command = [sys.executable, "-c", CALL]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert [run(), run()] == ["3.0 0", "3.0 1"]  # the second time from disk
    vector = (copied / "_vector.py").read_text()
    edited = vector.replace("scores[i] *= scale\n", "scores[i] *= scale + 1\n")
    assert edited != vector
    (copied / "_vector.py").write_text(edited)
    assert run() == "4.0 0"
    (copied / "_vector.py").write_text(vector)
    assert run() == "3.0 1"


def imported(file: str) -> set[str]:
    """Files of kernels/ that one of them imports."""
    found = set()
    for node in ast.walk(ast.parse((KERNELS / file).read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            found |= {node.module} if node.module else {alias.name for alias in node.names}
    return {f"{module}.py" for module in found}


def test_every_file_that_is_compiled_counts():
    files, new = set(), {"attention_cpu.py"}
    while new:
        files |= new
        new = {name for file in new for name in imported(file)} - files
    compiled = {file for file in files if "_numba.py" in imported(file) or "_llvm.py" in imported(file)}
    assert set(_numba.COMPILED_TOGETHER) == compiled | {"_numba.py", "_llvm.py"}


@pytest.fixture
def places(tmp_path, monkeypatch):
    """NUMBA_CACHE_DIR's folder, the user's and the sources'."""
    sources = tmp_path / "kernels"
    shutil.copytree(KERNELS, sources, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(_numba, "HERE", sources)
    monkeypatch.setattr(_numba.config, "CACHE_DIR", str(tmp_path / "chosen"))
    monkeypatch.setattr(_numba.AppDirs, "user_cache_dir", str(tmp_path / "user"))
    return [tmp_path / "chosen", tmp_path / "user", sources / "__pycache__"]


def test_the_first_place_that_can_be_written_is_taken(places, monkeypatch):
    for place in places:
        folder = _numba.cache_folder()
        assert folder is not None and folder.parent == place
        shutil.rmtree(place)
        place.write_text("a file in the folder's place, which nobody can write to")
    assert _numba.cache_folder() is None
    places[1].unlink()
    monkeypatch.setattr(_numba.config, "CACHE_DIR", "")
    assert _numba.cache_folder().parent == places[1]


def test_machine_code_of_old_sources_goes(places):
    for number in range(20):
        (places[0] / f"attention_cpu-{number}").mkdir(parents=True)
        os.utime(places[0] / f"attention_cpu-{number}", (number, number))
    newest = _numba.cache_folder()
    left = {path.name for path in places[0].iterdir()}
    assert left == {newest.name, *(f"attention_cpu-{number}" for number in range(13, 20))}
