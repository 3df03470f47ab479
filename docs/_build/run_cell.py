"""Runs a cell of the site's pages: here when the site is built, in the browser when Run is pressed."""

from __future__ import annotations

import ast
import contextlib
import io
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

LONGEST = 50_000  # characters that a cell may print: a page that is given more gets slow


def run_cell(code: str, tell: Callable[[str], object]) -> tuple[str, int]:
    """Run `code` on its own, and hand what it prints to `tell` while it runs.

    The value of a last line that is an expression is printed too. Returns the error that ended the cell, in
    words, and its line in the cell: ("", 0) if there was none, and line 0 if no line of the cell raised it.
    """
    printed = _Printed(tell)
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            _run(code)
        except BaseException as error:
            return _told(error)
    return "", 0


def forget_modules(folder: str) -> None:
    """Drop the modules in `folder`, so that the next import reads them anew, as they were written."""
    own = {path.stem for path in Path(folder).iterdir()}
    for name in [*sys.modules]:
        if name.partition(".")[0] in own:
            del sys.modules[name]


class _Printed(io.TextIOBase):
    """A stream that hands on what is written to it, up to LONGEST characters."""

    def __init__(self, tell: Callable[[str], object]) -> None:
        self.tell = tell
        self.left = LONGEST

    def write(self, text: str) -> int:
        if len(text) > self.left:
            self.tell(text[: self.left])
            self.left = 0
            raise RuntimeError(f"a cell prints {LONGEST:,} characters at most")
        self.left -= len(text)
        self.tell(text)
        return len(text)


def _run(code: str) -> None:
    names: dict[str, Any] = {"__name__": "__main__", "input": _no_input}
    tree = ast.parse(code, "cell")
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
        if value is not None:
            print(repr(value))


def _no_input(prompt: object = "") -> str:
    raise RuntimeError("a cell can't ask: there is no input here, write the value into the code")


def _told(error: BaseException) -> tuple[str, int]:
    """The exception in words, after the line of the cell that raised it, and that line."""
    frames = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == "cell"]
    text = "".join(traceback.format_exception_only(error)).rstrip()
    if isinstance(error, SyntaxError):
        lines += [error.lineno or 1] if error.filename == "cell" else []
        text = f"{type(error).__name__}: {error.msg}"
    return (f"line {lines[-1]}: {text}", lines[-1]) if lines else (text, 0)
