"""Where results go: a file, checked to be writable before anything runs, and tables that fit a terminal."""

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
    """Return the path of a file, after a check that it can be written. The check leaves all as it was.

    argument: the caller's name for it, for the error. Raises InvalidConfigError.
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
    """Return the error to raise if a file that an argument names can't be written."""
    reason = getattr(error, "strerror", None) or error
    return InvalidConfigError(f"{argument}={str(name)!r} can't be written: {reason}")


def write_results(console: DataConsole, output: Path, results: dict[str, Any]) -> None:
    """Write every figure as JSON, and say where. Raises InvalidConfigError if that fails."""
    try:
        output.write_text(json.dumps(results, indent=1) + "\n")
    except OSError as error:
        raise unwritable("output", output, error) from error
    console.write((f"Every figure is in {output}.", "dim"))


def empty_table(title: str, names: Iterable[str] = (), label: str | None = None) -> Table:
    """Return a table that is narrow enough for 80 columns. `names` are those of its columns of numbers.

    label: the name of a column of texts before them, if there is one.
    """
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    if label is not None:
        table.add_column(label, no_wrap=True)
    for name in names:
        table.add_column(name, justify="right")
    return table
