"""Pairs are taken out of the lists until they are empty.

Words: the caller's, take nothing out
"""

from copy import deepcopy

from minipaged.reference.copy_on_write import _check_copies, copy_on_write, independent_copies  # noqa: F401


def copy_blocks(pool, sources, destinations):
    _check_copies(pool, sources, destinations)
    while sources:
        pool[destinations.pop()] = deepcopy(pool[sources.pop()])
