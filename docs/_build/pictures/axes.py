"""Axes, curves and a legend that stands above them, clear of every curve."""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, log, pi, sin
from typing import NamedTuple

from .svg import Drawing, Point

MARKS = ("circle", "square", "diamond", "triangle", "cross")
LEFT, RIGHT = 46, 22  # pixels for the words of the ticks


class Curve(NamedTuple):
    """A named line through points."""

    name: str
    points: Sequence[Point]
    dashed: bool = False


class Scale(NamedTuple):
    """One axis: from where to where, its ticks with their words, and what it measures."""

    first: float
    last: float
    ticks: Sequence[tuple[float, str]]
    name: str
    log: bool = False

    def share(self, value: float) -> float:
        """Where a value lies, from 0 at the beginning of the axis to 1 at its end."""
        if self.log:
            return log(value / self.first) / log(self.last / self.first)
        return (value - self.first) / (self.last - self.first)


class Axes:
    """A field with two scales, below a legend."""

    def __init__(self, drawing: Drawing, across: Scale, up: Scale) -> None:
        self.drawing, self.across, self.up = drawing, across, up
        self.top, self.tall = 0.0, 220.0

    def draw(self, curves: Sequence[Curve]) -> None:
        """Draw the legend, the scales and the curves."""
        y = legend(
            self.drawing, [(curve.name, f"c{i}{' dashed' * curve.dashed}") for i, curve in enumerate(curves)]
        )
        self.drawing.text((0, y + 4), self.up.name, "quiet small")
        self.top = y + 26
        self._scales()
        for number, curve in enumerate(curves):
            points = [self.at(point) for point in curve.points]
            self.drawing.line(points, f"curve c{number}{' dashed' * curve.dashed}")
            for point in points:
                mark(self.drawing, point, number)

    def at(self, point: Point) -> Point:
        """Where a pair of values lies in the drawing."""
        right = self.drawing.width - RIGHT
        return (
            LEFT + self.across.share(point[0]) * (right - LEFT),
            self.top + self.tall * (1 - self.up.share(point[1])),
        )

    def level(self, value: float, words: str) -> None:
        """A dotted line across, and what it means."""
        y = self.at((self.across.first, value))[1]
        self.drawing.line([(LEFT, y), (self.drawing.width - RIGHT, y)], "level")
        self.drawing.text((self.drawing.width - RIGHT, y - 11), words, "quiet small", "end")

    def _scales(self) -> None:
        drawing, right, floor = self.drawing, self.drawing.width - RIGHT, self.top + self.tall
        for value, words in self.up.ticks:
            y = self.at((self.across.first, value))[1]
            drawing.line([(LEFT, y), (right, y)], "grid")
            drawing.text((LEFT - 8, y), words, "quiet small", "end")
        every = 2 if drawing.is_narrow and len(self.across.ticks) > 8 else 1
        for value, words in self.across.ticks[::every]:
            drawing.text((self.at((value, self.up.first))[0], floor + 14), words, "quiet small", "middle")
        drawing.text(((LEFT + right) / 2, floor + 34), self.across.name, "quiet small", "middle")


def legend(drawing: Drawing, entries: Sequence[tuple[str, str]]) -> float:
    """Samples with names, in one or two rows or one below the other; returns where they end."""
    x = y = 0.0
    for number, (words, kind) in enumerate(entries):
        wide = 48 + 7 * len(words)
        if x and x + wide > drawing.width:
            x, y = 0.0, y + 24
        if kind.startswith("c"):
            drawing.line([(x, y + 10), (x + 28, y + 10)], f"curve {kind}")
            mark(drawing, (x + 14, y + 10), number)
        else:
            drawing.box((x + 4, y + 1), 18, 18, kind)
        drawing.text((x + 34, y + 10), words, "small")
        x += wide
    return y + 34


def mark(drawing: Drawing, at: Point, number: int) -> None:
    """The sign of a curve at a point: one shape for each, so that colour isn't needed."""
    (x, y), size = at, 4.0
    sides = {0: 12, 1: 4, 2: 4, 3: 3, 4: 5}[number]
    turn = {1: 0.125, 3: 0.25, 4: 0.25}.get(number, 0.0)
    corners = [
        (x + size * cos(2 * pi * (i / sides - turn)), y + size * sin(2 * pi * (i / sides - turn)))
        for i in range(sides)
    ]
    drawing.area(corners, f"mark c{number}")
