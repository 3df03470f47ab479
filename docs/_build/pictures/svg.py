"""A drawing that becomes SVG: boxes, words, lines and arrows, in colours that the page's scheme decides.

Nothing here names a colour. A shape has a kind, which is a class of docs/assets/pictures.css. A picture is
drawn twice, for a wide page and for a phone, because words that shrink with a picture can't be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import hypot

Point = tuple[float, float]
WIDTHS = {"wide": 720, "narrow": 350}  # pixels
HEAD = 7  # pixels, the length of an arrow's head


class Drawing:
    """What is drawn so far. Coordinates are pixels from the upper left; the height grows with the shapes."""

    def __init__(self, layout: str) -> None:
        self.layout = layout
        self.width = WIDTHS[layout]
        self.height = 0.0
        self.shapes: list[str] = []

    @property
    def is_narrow(self) -> bool:
        """Whether this is the drawing for a phone."""
        return self.layout == "narrow"

    def box(self, corner: Point, width: float, height: float, kind: str = "") -> None:
        """A rectangle from its upper left corner."""
        x, y = corner
        self._reach(y + height)
        size = f'width="{width:.1f}" height="{height:.1f}"'
        self.shapes.append(
            f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" {size} rx="{min(3, width / 6):.1f}"/>'
        )

    def label(
        self, corner: Point, size: Point, words: str | Sequence[str], kind: str = "", style: str = ""
    ) -> None:
        """A box with lines of text in its middle."""
        lines = [words] if isinstance(words, str) else words
        self.box(corner, *size, kind)
        pitch = 15 if "small" in style or self.is_narrow else 18
        middle, first = corner[0] + size[0] / 2, corner[1] + size[1] / 2 - pitch * (len(lines) - 1) / 2
        for number, line in enumerate(lines):
            self.text((middle, first + number * pitch), line, style, "middle")

    def text(self, at: Point, words: str, style: str = "", anchor: str = "start") -> None:
        """One line of text. The point is the middle of its height and its start, middle or end."""
        x, y = at
        self._reach(y + 9)
        self.shapes.append(
            f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
        )

    def line(self, points: Sequence[Point], kind: str = "") -> None:
        """A line through the points."""
        self._reach(max(y for _, y in points))
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.shapes.append(f'<polyline class="{kind}" points="{joined}"/>')

    def arrow(self, points: Sequence[Point], kind: str = "") -> None:
        """A line through the points with a head at the last one."""
        (x0, y0), (x, y) = points[-2:]
        long = hypot(x - x0, y - y0)
        dx, dy = (x - x0) / long * HEAD, (y - y0) / long * HEAD
        self.line([*points[:-1], (x - dx, y - dy)], kind)
        self._head((x, y), (dx, dy), kind)

    def curve(self, start: Point, end: Point, kind: str = "") -> None:
        """An arrow that leaves to the right and arrives from the left."""
        (x0, y0), (x, y) = start, end
        bend = (x - x0) / 2
        self.shapes.append(
            f'<path class="{kind}" d="M{x0:.1f} {y0:.1f}C{x0 + bend:.1f} {y0:.1f} {x - bend:.1f} {y:.1f} '
            f'{x - HEAD:.1f} {y:.1f}"/>'
        )
        self._head(end, (HEAD, 0), kind)

    def area(self, points: Sequence[Point], kind: str) -> None:
        """A filled polygon."""
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.shapes.append(f'<polygon class="{kind}" points="{joined}"/>')

    def svg(self, name: str, title: str, description: str) -> str:
        """The drawing with its name and, in words, what it shows."""
        key = f"picture-{name}-{self.layout}"
        return (
            f'<svg class="{self.layout}" viewBox="-1 -1 {self.width + 2} {self.height + 5:.0f}" role="img" '
            f'aria-labelledby="{key}-title" aria-describedby="{key}-words">'
            f'<title id="{key}-title">{escape(title)}</title>'
            f'<desc id="{key}-words">{escape(description)}</desc>{"".join(self.shapes)}</svg>'
        )

    def _head(self, tip: Point, along: Point, kind: str) -> None:
        (x, y), (dx, dy) = tip, along
        back, side = (x - dx, y - dy), (dy * 0.5, -dx * 0.5)
        corners = (tip, (back[0] + side[0], back[1] + side[1]), (back[0] - side[0], back[1] - side[1]))
        self.area(corners, f"head {kind}".strip())

    def _reach(self, y: float) -> None:
        self.height = max(self.height, y)
