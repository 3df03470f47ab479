"""Runs the lessons' own pytest, in this process, on an exercise, an answer key or a wrong solution."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # solutions.py


@pytest.fixture
def run_lessons() -> Callable[..., tuple[int, str]]:
    """A function that runs `pytest ARGUMENTS`: the exit code, and what was printed."""
    return _run


def _run(*arguments: str | Path, same_process: bool = True) -> tuple[int, str]:
    printed = io.StringIO()
    before = dict(os.environ)
    gc.freeze()  # pytest collects garbage five times a run; a worker of this suite has a million objects
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            plugins = ["-p", "no:cacheprovider", "-p", "no:benchmark", "-p", "no:xdist"]
            where = ["--same-process"] if same_process else []
            code = pytest.main([*map(str, arguments), *where, *plugins])
    finally:
        gc.unfreeze()
        os.environ.clear()
        os.environ.update(before)
    return int(code), printed.getvalue()
