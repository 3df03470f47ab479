"""Plots of a simulation: latency over rate, one panel per setting, as in the paper's Figure 12."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import InvalidConfigError
from ..terminal.results import output_file, unwritable
from .systems import SYSTEM_NAMES

Curves = Mapping[str, Sequence[tuple[float, float]]]  # (requests per second, seconds per token) by system


def plot_file(name: str | None) -> Path | None:
    """Check, before anything runs, that a plot can be written. Raises InvalidConfigError if not."""
    if name is None:
        return None
    if Path(name).suffix not in (".svg", ".png"):
        raise InvalidConfigError(f"plot={name!r} must be a file .svg or .png in a folder that exists")
    path = output_file(name, "plot")
    if find_spec("matplotlib") is None:
        raise InvalidConfigError(f"plot={name!r} needs matplotlib: pip install 'minipaged[plots]'")
    return path


def draw_rates(path: Path, panels: Mapping[str, Curves], target: float) -> None:
    """Draw a panel per title: the normalized latency of every system as the rate grows."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure, grid = pyplot.subplots(rows, columns, figsize=(4.2 * columns, 3.2 * rows), squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, (title, curves) in zip(grid.flat, panels.items(), strict=False):
        draw_panel(axes, title, curves, target)
    figure.tight_layout()
    try:
        figure.savefig(path)
    except OSError as error:
        raise unwritable("plot", path, error) from error
    finally:
        pyplot.close(figure)


def draw_panel(axes: Any, title: str, curves: Curves, target: float) -> None:
    """Draw latency over rate up to the target. A run stops beyond it, so its latency is not known."""
    for system, points in curves.items():
        shown = [(rate, latency) for rate, latency in sorted(points) if latency <= target]
        if shown:
            axes.plot(*zip(*shown, strict=True), "o-", markersize=3, label=SYSTEM_NAMES[system])
    axes.axhline(target, color="grey", linewidth=0.8, linestyle=":")
    axes.set(title=title, xlabel="requests a second", ylabel="seconds a token")
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1.1 * target)
    axes.legend(frameon=False, fontsize="small")
