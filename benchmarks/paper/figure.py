"""What a measurement of the paper comes to: rows of theirs and ours."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple


class FigureRow(NamedTuple):
    """One line of a figure: what is measured, the paper's figure, ours, and the same as plain data."""

    what: str
    paper: str
    ours: str
    value: Any = None


@dataclass
class Figure:
    """A figure or table of the paper, measured again."""

    title: str
    rows: list[FigureRow]
    remark: str = ""
    curves: dict[str, list[tuple[float, float]]] = field(default_factory=dict)  # (rate, latency) by system
