"""Print every text as it is, except characters that steer the terminal itself.

Prompts, answers, file names and errors are data, often not our own. An escape sequence in them could set the
window's title, fill the clipboard or erase earlier lines. On a terminal such characters are printed as
escapes, such as `\\x1b`. A pipe or a file gets them raw.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
from typing import IO

# Control characters except tab and newline (a carriage return lets a line overwrite itself), line and
# paragraph separators, marks that reorder text of two directions, and halves of characters.
_STEERING = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """Return `text` with each character that steers a terminal written out, as in a Python string."""
    return _STEERING.sub(lambda match: ascii(match[0])[1:-1], text)


def shown(text: str, stream: IO[str]) -> str:
    """Return what to write of `text`: on a terminal no steering characters, anywhere else the text itself."""
    return visible(text) if stream.isatty() else text


def say(text: str, stream: IO[str] | None = None) -> None:
    """Print a line of text that may hold data, on standard output unless a stream is given."""
    stream = stream or sys.stdout
    print(shown(text, stream), file=stream, flush=True)


def prepare_streams() -> None:
    """Let no character end a command: replace what an encoding can't hold, and keep input that is no text.

    Bytes that are no text become halves of characters, which the engine refuses in one line. A stream that
    the caller has closed becomes an empty one.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 (until the process ends)
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "errors", None) in ("strict", "surrogateescape"):
            _set_errors(stream, "replace")
    _set_errors(sys.stdin, "surrogateescape")
    logging.lastResort = _Warnings(logging.WARNING)


def _set_errors(stream: IO[str], errors: str) -> None:
    # The stream may be no file, or a file that is closed or was read from.
    with contextlib.suppress(AttributeError, ValueError):
        stream.reconfigure(errors=errors)  # type: ignore[attr-defined]


class _Warnings(logging.Handler):
    """Prints warnings if nobody has set up logging. Warnings quote names from checkpoints."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            say(self.format(record), sys.stderr)
        except Exception:
            self.handleError(record)
