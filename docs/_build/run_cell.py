"""Runs a cell of the site's pages: here when the site is built, in the browser when Run is pressed."""

from __future__ import annotations

import ast
import contextlib
import io
import traceback
from typing import Any


def run_cell(code: str) -> tuple[str, bool]:
    """What `code` prints, run on its own, and whether it failed.

    The value of a last line that is an expression is printed too, and an exception with its line.
    """
    printed, failed = io.StringIO(), False
    with contextlib.redirect_stdout(printed):
        try:
            _run(code)
        except BaseException as error:
            printed.write(_told(error))
            failed = True
    return printed.getvalue().rstrip(), failed


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


def _told(error: BaseException) -> str:
    """The exception's own lines, after the line of the cell that raised it. A syntax error says its own."""
    text = "".join(traceback.format_exception_only(error))
    lines = [
        line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == "cell"
    ]
    return f"line {lines[-1]}: {text}" if lines else text
