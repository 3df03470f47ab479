"""Sources and destinations are mistaken for each other.

Words: copied the wrong way
"""

from copy import deepcopy

from minipaged.reference.copy_on_write import _check_copies, copy_on_write, independent_copies  # noqa: F401


def copy_blocks(pool, sources, destinations):
    _check_copies(pool, sources, destinations)
    for source, destination in zip(sources, destinations, strict=True):
        pool[source] = deepcopy(pool[destination])
