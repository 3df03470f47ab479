"""What an exception came from: the exceptions before it, and the lines of a file that it passed."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Literal


def chain(error: BaseException, link: Literal["__cause__", "__context__"]) -> list[BaseException]:
    """Return the exception, the one that it came from, and so on back to the first.

    `__cause__` leads to the exception that it was raised from: interpreters wrap what a kernel raises.
    `__context__` leads to the exception that was being handled when it was raised.
    """
    errors = [error]
    while (earlier := getattr(errors[-1], link)) is not None and earlier not in errors:
        errors.append(earlier)
    return errors


def innermost_line(errors: Sequence[BaseException], path: Path | None) -> tuple[int | None, str]:
    """Return the last line of a file that the exceptions passed, and its function; (None, "") for none.

    errors: as `chain` returns them; the earliest exception decides.
    """
    is_own = cache(partial(is_file, path=path))  # a deep recursion has thousands of frames of few files
    for error in reversed(errors):
        for frame in reversed(traceback.extract_tb(error.__traceback__)):
            if is_own(frame.filename):
                return frame.lineno, frame.name
    return None, ""


def raised_by_hand(error: BaseException, path: Path | None) -> int | None:
    """Return the line of a file whose `raise` made the exception; None if it came from elsewhere."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or not is_file(frames[-1].filename, path):
        return None
    return frames[-1].lineno if (frames[-1].line or "").startswith("raise ") else None


def is_file(name: str | None, path: Path | None) -> bool:
    """Whether a file name, as Python has it, is the name of `path`."""
    return name is not None and path is not None and Path(name).resolve() == path.resolve()
