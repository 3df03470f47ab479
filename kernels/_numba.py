"""How Numba compiles the CPU's attention, and where it keeps the machine code.

Compiling takes some ten seconds, so Numba keeps what it made on disk. It compiles a function anew if the file
of that function has changed, but not if a file has changed whose functions were compiled into it. So the
machine code lies in a folder named after a hash of all files that are compiled together.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from numba import config, njit
from numba.misc.appdirs import AppDirs

HERE = Path(__file__).parent
COMPILED_TOGETHER = (
    "_cpu_arguments.py", "_llvm.py", "_numba.py", "_vector.py", "_work_items.py", "attention_cpu.py",
)  # fmt: skip

MOST_FOLDERS = 8  # of machine code, of some 1 MB each

_INNER: dict[str, Any] = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
# Sums may be reordered and fused. NaN and infinity keep their meaning: -inf stands for a hidden score.
_FAST: dict[str, Any] = {"fastmath": {"contract", "nsz", "reassoc"}, "forceinline": True}
# Numba counts the references to every array and every slice of one, with an atomic addition each. In an inner
# loop that takes longer than the arithmetic, and a function that allocates nothing doesn't need it.
_UNCOUNTED: dict[str, Any] = {"_nrt": False}
EXACT: dict[str, Any] = {"fastmath": {"contract"}, "forceinline": True} | _INNER


def inner(function: Callable[..., Any]) -> Any:
    """Compile a function that only compiled functions call."""
    return njit(_nrt=True, **_INNER)(function)


def unallocating(function: Callable[..., Any]) -> Any:
    """Compile an inner function that allocates nothing, without counting references."""
    return njit(**_UNCOUNTED, **_INNER)(function)


def fast(function: Callable[..., Any]) -> Any:
    """Compile an unallocating function into each of its callers, with loops that LLVM may vectorise."""
    return njit(**_FAST, **_UNCOUNTED, **_INNER)(function)


def cache_folder() -> Path | None:
    """The folder for the machine code of these very sources; None if nothing can be written.

    It lies in the first of three folders that can be written: the one that NUMBA_CACHE_DIR names, the user's
    cache, and __pycache__ beside the sources.
    """
    user = AppDirs(appname="minipaged", appauthor=False).user_cache_dir
    folders = [Path(folder) for folder in (config.CACHE_DIR, user, HERE / "__pycache__") if folder]
    try:
        sources = b"".join((HERE / name).read_bytes() for name in COMPILED_TOGETHER)
    except OSError:
        return None
    for parent in folders:
        folder = parent / f"attention_cpu-{hashlib.sha256(sources).hexdigest()[:16]}"
        with suppress(OSError):
            is_new = not folder.is_dir()
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
            if is_new:
                _remove_old(parent)
            return folder
    return None


def _remove_old(parent: Path) -> None:
    """Remove the machine code of sources that were edited since, except the newest."""
    for folder in sorted(parent.glob("attention_cpu-*"), key=os.path.getmtime)[:-MOST_FOLDERS]:
        shutil.rmtree(folder, ignore_errors=True)


def entry(function: Callable[..., Any], **options: Any) -> Any:
    """Compile a function that Python calls, and keep its machine code on disk."""
    options |= {"error_model": "numpy", "nogil": True, "cache": FOLDER is not None}
    before = config.CACHE_DIR  # Numba looks up where to keep machine code in this global, while it decorates
    try:
        config.CACHE_DIR = str(FOLDER or before)
        return njit(**options)(function)
    finally:
        config.CACHE_DIR = before


def threaded_entry(function: Callable[..., Any]) -> Any:
    """Compile an entry whose `prange` loop is shared out among threads."""
    return entry(function, parallel=True)


FOLDER = cache_folder()
