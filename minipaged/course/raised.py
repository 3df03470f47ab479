"""What an exception came from: the exceptions before it, and the lines of a file that it passed."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Literal


def chain(error: BaseException, link: Literal["__cause__", "__context__"]) -> list[BaseException]:
    """The exception and those that it came from, last first.

    By `__cause__` those that it was raised from: interpreters wrap what a kernel raises. By `__context__`
    those during whose handling it was raised.
    """
    errors = [error]
    while (earlier := getattr(errors[-1], link)) is not None and earlier not in errors:
        errors.append(earlier)
    return errors


def innermost_place(error: BaseException, path: Path) -> tuple[int | None, str]:
    """The last line of a file that an exception passed, and the function there; (None, "") for none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_file(frame.filename, path):
            return frame.lineno, frame.name
    return None, ""


def is_file(name: str | None, path: Path) -> bool:
    """Whether a file name, as Python has it, is that of `path`."""
    return name is not None and Path(name).resolve() == path.resolve()
