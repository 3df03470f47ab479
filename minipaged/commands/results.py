"""Where results go: a file that is known to be writable beforehand, and tables that fit a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from ..errors import InvalidConfigError
from .console import DataConsole


def output_file(name: str) -> Path:
    """Where results go, known to be writable before anything is measured. Raises InvalidConfigError."""
    output = Path(name)
    if output.is_dir() or not output.parent.is_dir():
        raise InvalidConfigError(f"output={name!r} is not a file in a folder that exists")
    check_writable("output", output)
    return output


def check_writable(name: str, path: Path) -> None:
    """Raise InvalidConfigError where nothing can be written to `path`. Leaves all as it was."""
    existed = path.exists()
    try:
        path.open("a").close()
    except OSError as error:
        raise InvalidConfigError(f"{name}={str(path)!r} can't be written: {error.strerror}") from None
    if not existed:
        path.unlink()


def write_results(console: DataConsole, output: Path, results: dict[str, Any]) -> None:
    """Keep every figure as JSON, and say where."""
    output.write_text(json.dumps(results, indent=1) + "\n")
    console.write((f"Every figure is in {output}.", "dim"))


def empty_table(title: str, names: Iterable[str] = ()) -> Table:
    """A table that is narrow enough for 80 columns, with a column of numbers for each of the names."""
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in names:
        table.add_column(name, justify="right")
    return table
