"""What the pages' cells and commands print, found out by running them when the site is built.

Commands are run again only when the sources have changed: their output is kept in docs/_build/made.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import subprocess
import sys
import traceback
from functools import cache
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).parents[2]
MADE = Path(__file__).parent / "made"
TRACES = MADE / "traces"
FIGURES = MADE / "figures"
BUILT = MADE / "built"  # its time is when the build of site/ began
SOURCES = ("minipaged", "reference", "kernels", "lessons")


def is_fresh(folder: Path, script: str) -> bool:
    """Whether what `script` made in `folder` was made of the sources as they are."""
    stamp = folder / "digest"
    return stamp.is_file() and stamp.read_text() == _made_by(script)


def made(folder: Path, script: str) -> None:
    """Note that `script` has made what is in `folder`."""
    (folder / "digest").write_text(_made_by(script))


def _made_by(script: str) -> str:
    return sha256(digest().encode() + Path(script).read_bytes()).hexdigest()


def of_cell(code: str) -> str:
    """What a cell prints, an exception's last line included: on its own, as in the browser."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile(code, "cell", "exec"), {"__name__": "__main__"})
        except Exception as error:
            printed.write("".join(traceback.format_exception_only(error)))
    return printed.getvalue().rstrip()


def of_command(command: str) -> str:
    """What a command of ours prints. Raises ValueError where it fails."""
    kept = MADE / "outputs" / f"{sha256((command + digest()).encode()).hexdigest()[:24]}.txt"
    if not kept.is_file():
        words = shlex.split(command)
        programs = {"minipaged": ["-m", "minipaged"], "pytest": ["-m", "pytest"]}
        environment = os.environ | {"COLUMNS": "86", "NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [sys.executable, *programs[words[0]], *words[1:]],
            cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode and "pytest" not in words:
            raise ValueError(f"exit code {done.returncode}: {done.stderr[-500:]}")
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text("\n".join(line.rstrip() for line in done.stdout.splitlines()).strip("\n"))
    return kept.read_text()


@cache
def digest() -> str:
    """A digest of everything that a command's output may depend on."""
    total = sha256()
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            total.update(path.read_bytes())
    return total.hexdigest()
