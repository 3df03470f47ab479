"""`minipaged lessons diff`: what the learner wrote beside the answer key, and what each costs."""

from __future__ import annotations

import os
import textwrap
from types import ModuleType

from rich.table import Table
from rich.text import Text

from ..errors import InvalidRequestError
from ..terminal import shown
from ..terminal.console import DataConsole
from .checks import describe
from .costs import Costs, costs, explanation, is_kernel
from .exercise import load_exercise, location
from .manifest import Lesson
from .versions import are_equal, function_of, source_of

WIDE = 120  # columns of a terminal from which two versions stand side by side
_TITLES = "yours", "the key's"
_GAP = 3  # columns between two versions


def show_diff(lesson: Lesson, console: DataConsole) -> None:
    """Print each function of a solved lesson in both versions, and then the costs of both.

    Raises InvalidRequestError if the exercise can't be imported, or its costs can't be counted.
    """
    if is_kernel(lesson):  # a GPU would not tell what its programs read
        os.environ.update(TRITON_INTERPRET="1", NUMBA_ENABLE_CUDASIM="1")
    mine, key = _imported(lesson), lesson.answer()
    for name in lesson.write:
        show_function(name, source_of(function_of(mine, name)), source_of(function_of(key, name)), console)
    console.print()
    show_costs(costs(lesson, lesson.exercise_path, mine), costs(lesson, None, key), console)
    console.print(explanation(lesson), style="dim")


def show_function(name: str, mine: str, key: str, console: DataConsole) -> None:
    """Print both versions of one function: side by side where there is room. Equal ones are only named."""
    console.print()
    if are_equal(mine, key):
        console.write((name, "bold"), ": yours equals the key's")
        return
    console.write((name, "bold"))
    if console.width >= WIDE:
        columns = (console.width - _GAP) // 2
        table = Table(*_TITLES, box=None, padding=(0, _GAP, 0, 0), pad_edge=False)
        table.add_row(_marked(mine, key, console, columns), _marked(key, mine, console, columns))
        console.print(table)
        return
    texts = _marked(mine, key, console), _marked(key, mine, console)
    for title, text in zip(_TITLES, texts, strict=True):
        console.print(f"--- {title}", style="bold")
        console.print(text, soft_wrap=True)


def show_costs(mine: Costs, key: Costs, console: DataConsole) -> None:
    """Print each number of both versions, and how they compare."""
    table = Table("", box=None, padding=(0, _GAP, 0, 0))
    for title in _TITLES:
        table.add_column(title, justify="right")
    table.add_column("")
    for cost in mine:
        numbers = mine[cost], key[cost]
        table.add_row(cost, *(f"{number:,}" for number in numbers), compared(*numbers))
    console.print(table)


def compared(mine: int, key: int) -> str:
    """Return in words how many times the key's number the learner's number is."""
    if mine == key:
        return "1.00 times the key's: the same"
    word = "less" if mine < key else "more"
    if not key:
        return word
    digits = 4 if 0.995 < mine / key < 1.005 else 2
    return f"{mine / key:.{digits}f} times the key's: {word}"


def _marked(version: str, other: str, console: DataConsole, columns: int | None = None) -> Text:
    """Return a version's text, in which lines that the other version has too are dim.

    Lines of more than `columns` go on in the next line, further to the right.
    """
    known = {line.strip() for line in other.splitlines()}
    text = Text()
    for line in version.splitlines():
        parts = _wrapped(shown(line, console.file), columns) if columns else [shown(line, console.file)]
        text.append("".join(f"{part}\n" for part in parts), "dim" if line.strip() in known else "")
    text.rstrip()
    return text


def _wrapped(line: str, columns: int) -> list[str]:
    indent = len(line) - len(line.lstrip())
    further = " " * (indent + 8)
    parts = textwrap.wrap(
        line, columns, subsequent_indent=further, expand_tabs=False, replace_whitespace=False
    )
    return parts or [""]


def _imported(lesson: Lesson) -> ModuleType:
    """Import the exercise. Raises InvalidRequestError if that fails."""
    try:
        return load_exercise(lesson.exercise_path)
    except (Exception, SystemExit) as error:
        raise InvalidRequestError(
            f"{location(lesson.exercise_path)} can't be imported: {describe(error)}"
        ) from error
