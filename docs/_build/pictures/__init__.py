"""The site's pictures: one function for each, drawn from what the library computes while the site is built.

A function draws on what it is given and returns in words what there is to see. The first line of its
docstring is the picture's title. Pages ask for it with `{{ picture fold }}`.
"""

from __future__ import annotations

import inspect

from . import attention, charts, machine, pool, prefix, schedules, strip, structure, tables
from .svg import WIDTHS, Drawing

PICTURES = {
    draw.__name__: draw
    for draw in (
        tables.page_tables,
        strip.waste_strip,
        pool.pool_tensor,
        schedules.batches,
        schedules.chunks,
        attention.fold,
        attention.splits,
        prefix.chain,
        machine.tensor_parallelism,
        charts.waste,
        charts.reservation,
        charts.cache_size,
        charts.rates,
        structure.step,
    )
}


def figure(name: str) -> str:
    """The HTML of a picture in its two widths, of which CSS shows one. Raises KeyError for a name unknown."""
    draw = PICTURES[name]
    title = (inspect.getdoc(draw) or "").partition("\n")[0].rstrip(".")
    drawings = []
    for layout in WIDTHS:
        drawing = Drawing(layout)
        words = draw(drawing)
        drawings.append(drawing.svg(name, title, words))
    return f'<figure class="picture" data-search-exclude="">{"".join(drawings)}</figure>'
