"""A console for which every string is data: no markup, no emoji codes, nothing that steers the terminal."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.segment import Segment, Segments
from rich.status import Status
from rich.text import Text

from . import shown

Styled = str | tuple[str, str]  # a text, or a text and its style


class DataConsole(Console):
    """Prints texts as they are (`write`), and rich's tables, rules and wrapped notes (`print`).

    A style is an argument, never part of a text: `console.print(note, style="dim")`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, highlight=False, emoji=False, **options)

    def write(self, *parts: Styled, end: str = "\n") -> None:
        """Print texts one after another, unchanged, on lines of any length.

        rich's own way to print a text drops carriage returns and expands tabs.
        """
        pairs = [part if isinstance(part, tuple) else (part, "") for part in (*parts, end)]
        segments = [Segment(shown(text, self.file), self.get_style(style)) for text, style in pairs]
        self.print(Segments(segments), soft_wrap=True)

    def render_str(self, text: str, **options: Any) -> Text:  # type: ignore[override]
        """Make plain text of every string that rich renders: titles, cells of tables, lines to wrap."""
        return super().render_str(shown(text, self.file), **options | {"markup": False, "emoji": False})

    def status(self, status: Any, **options: Any) -> Status:
        """Show a status line. rich itself would read a plain string as markup."""
        return super().status(self.render_str(status) if isinstance(status, str) else status, **options)

    def on_broken_pipe(self) -> None:
        """Raise the error. rich itself would end the process, with an exit code of its own."""
        raise BrokenPipeError


def plain_console() -> DataConsole:
    """Return a console for texts of any length: in a pipe, lines break only where the text does."""
    return DataConsole(soft_wrap=not sys.stdout.isatty())
