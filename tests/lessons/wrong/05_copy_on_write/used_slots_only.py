"""Slots are copied up to the first empty one; what lay behind them before stays.

Words: whole block, all slots
"""

from copy import deepcopy

from minipaged.reference.copy_on_write import _check_copies, copy_on_write, independent_copies  # noqa: F401


def copy_blocks(pool, sources, destinations):
    _check_copies(pool, sources, destinations)
    for source, destination in zip(sources, destinations, strict=True):
        for slot, value in enumerate(pool[source]):
            if value is None:
                break
            pool[destination][slot] = deepcopy(value)
