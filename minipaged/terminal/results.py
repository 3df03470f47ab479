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


def output_file(name: str, argument: str = "output") -> Path:
    """Where results go, known to be writable before anything is computed. Leaves all as it was.

    argument: how the caller calls it. Raises InvalidConfigError.
    """
    path = Path(name)
    try:
        if path.is_dir() or not path.parent.is_dir():
            raise InvalidConfigError(f"{argument}={name!r} is not a file in a folder that exists")
        existed = path.exists()
        path.open("a").close()
        if not existed:
            path.unlink()
    except (OSError, ValueError) as error:  # no name of a file holds a zero byte, for one
        raise unwritable(argument, name, error) from None
    return path


def unwritable(argument: str, name: str | Path, error: Exception) -> InvalidConfigError:
    """The error to raise where a file that an argument names can't be written."""
    reason = getattr(error, "strerror", None) or error
    return InvalidConfigError(f"{argument}={str(name)!r} can't be written: {reason}")


def write_results(console: DataConsole, output: Path, results: dict[str, Any]) -> None:
    """Keep every figure as JSON, and say where. Raises InvalidConfigError where that fails."""
    try:
        output.write_text(json.dumps(results, indent=1) + "\n")
    except OSError as error:
        raise unwritable("output", output, error) from error
    console.write((f"Every figure is in {output}.", "dim"))


def empty_table(title: str, names: Iterable[str] = ()) -> Table:
    """A table that is narrow enough for 80 columns, with a column of numbers for each of the names."""
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in names:
        table.add_column(name, justify="right")
    return table
