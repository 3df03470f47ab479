"""Draw the picture that a shared link shows: the name, and a block table that points into a pool."""

from __future__ import annotations

import sys
from typing import Any

import outputs

if __name__ == "__main__":
    outputs.leave_if_fresh("card", outputs.CARD.parent, __file__)

import matplotlib

matplotlib.use("agg")

from matplotlib import pyplot

BLUE, ORANGE, GREY = "#24506b", "#d07a2d", "#b9b9b4"


def card(axes: Any) -> None:
    """What a shared link shows: the name, and a block table that points into a pool."""
    axes.set(xlim=(0, 12), ylim=(0, 6.3))
    axes.axis("off")
    axes.text(0.7, 5.2, "minipaged", size=44, weight="bold", color=BLUE)
    axes.text(0.7, 4.45, "PagedAttention you can run", size=22, color="#444444")
    blocks = {4: 0, 0: 1, 7: 2}  # physical: logical
    for block in range(8):
        colour = ORANGE if block in blocks else GREY
        axes.add_patch(pyplot.Rectangle((0.7 + 1.35 * block, 0.6), 1.2, 0.9, color=colour, alpha=0.85))
        axes.text(1.3 + 1.35 * block, 1.05, str(block), size=16, ha="center", va="center", color="white")
    for block, logical in blocks.items():
        axes.add_patch(pyplot.Rectangle((4.4 + 1.1 * logical, 2.9), 1, 0.8, color=BLUE))
        axes.text(4.9 + 1.1 * logical, 3.3, str(block), size=16, ha="center", va="center", color="white")
        start, end = (4.9 + 1.1 * logical, 2.85), (1.3 + 1.35 * block, 1.55)
        axes.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": BLUE, "lw": 2})
    axes.text(0.7, 3.2, "a block table", size=18, color="#444444")
    axes.text(0.7, 0.1, "a pool of blocks", size=18, color="#444444")


def draw_card() -> None:
    """Draw the card, 1,200 by 630 pixels."""
    figure = pyplot.figure(figsize=(12, 6.3), dpi=100)
    card(figure.add_axes((0, 0, 1, 1)))
    figure.savefig(outputs.CARD, facecolor="white", metadata={"Software": None})
    pyplot.close(figure)


def main() -> None:
    """Draw the card."""
    folder = outputs.CARD.parent
    folder.mkdir(parents=True, exist_ok=True)
    draw_card()
    outputs.made(folder, __file__)


if __name__ == "__main__":
    sys.exit(main())
