"""What the pages' cells and commands print, found out by running them when the site is built.

Commands are run again only when the sources have changed: their output is kept in docs/_build/made.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from hashlib import sha256
from pathlib import Path

from run_cell import run_cell

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
MADE = HERE / "made"
TRACES = MADE / "traces"
CARD = MADE / "card" / "card.png"  # the picture that a shared link shows
BUILT = MADE / "built"  # its time is when the build of site/ began
TIMES = re.compile(r"\b\d[\d,.]*(?= (tokens/s|s|ms|µs)\b)")
RESULTS = ROOT / "benchmarks" / "results"
SOURCES = ("minipaged", "reference", "kernels", "lessons", "benchmarks")


def leave_if_fresh(what: str, folder: Path, script: str) -> None:
    """Say whether `script` has something to make in `folder`, and end it if not, before it loads a model."""
    if is_fresh(folder, script):
        print(f"{what}: nothing has changed in what they are made of", flush=True)
        sys.exit()
    print(f"{what}: to be made ...", flush=True)


def is_fresh(folder: Path, script: str) -> bool:
    """Whether the files from which `script` made what is in `folder` are as they were."""
    stamp = folder / "made_of.json"
    if not stamp.is_file():
        return False
    kept = json.loads(stamp.read_text())
    return Path(script).relative_to(ROOT).as_posix() in kept and kept == _digests(kept)


def made(folder: Path, script: str) -> None:
    """Note that `script` has made what is in `folder` of the files of ours that this process has loaded."""
    loaded = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    paths = (
        {Path(path) for path in [script, *loaded] if path}
        | set(RESULTS.glob("*.json"))
        | set(HERE.glob("*.toml"))
    )
    paths -= {Path(__file__), HERE / "run_cell.py"}  # these make nothing
    folders = [ROOT / name for name in (*SOURCES, "docs")]
    ours = [path.relative_to(ROOT).as_posix() for path in paths if set(folders) & set(path.parents)]
    (folder / "made_of.json").write_text(json.dumps(_digests(ours), indent=0))


def _digests(names: Iterable[str]) -> dict[str, str]:
    """The digest of each file, "" for one that is gone."""
    paths = {name: ROOT / name for name in sorted(names)}
    return {
        name: sha256(path.read_bytes()).hexdigest() if path.is_file() else "" for name, path in paths.items()
    }


def of_cell(code: str) -> tuple[str, str, int]:
    """What a cell prints, on its own as in the browser; the error that ends it, or ""; and its line."""
    printed: list[str] = []
    error, line = run_cell(code, printed.append)
    text = "".join(printed)
    return text if error else text.rstrip(), error, line


def of_command(command: str) -> str:
    """What a command of ours prints. Raises ValueError where it fails."""
    words = shlex.split(command)
    programs = {"minipaged": ["-m", "minipaged"], "pytest": ["-m", "pytest"]}
    return _of_python([*programs[words[0]], *words[1:]], may_fail="pytest" in words)


def of_script(code: str) -> str:
    """What Python code prints. Raises ValueError where it fails."""
    return _of_python(["-c", code])


def _of_python(arguments: list[str], may_fail: bool = False) -> str:
    """What Python prints with these arguments, or printed when the sources were the same, less its times."""
    kept = MADE / "outputs" / f"{sha256((repr(arguments) + digest()).encode()).hexdigest()[:24]}.txt"
    if not kept.is_file():
        print(f"  running {shlex.join(arguments)[:90]} ...".replace("\n", " "), flush=True)
        environment = os.environ | {"COLUMNS": "86", "NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode and not may_fail:
            raise ValueError(f"exit code {done.returncode}: {done.stderr[-500:]}")
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text("\n".join(line.rstrip() for line in done.stdout.splitlines()).strip("\n"))
    return without_times(kept.read_text())


def without_times(text: str) -> str:
    """The text with "…" for each time and speed: those are of the machine that builds the site."""
    return TIMES.sub("…", text)


@cache
def digest() -> str:
    """A digest of everything that a command's output may depend on."""
    total = sha256()
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            total.update(path.read_bytes())
    for path in sorted(RESULTS.glob("*.json")):
        total.update(path.read_bytes())
    return total.hexdigest()
