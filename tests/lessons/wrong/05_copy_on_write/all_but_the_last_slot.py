"""The slot that is about to be written is left out, as if it were always the last one.

Words: whole block, all slots
"""

from copy import deepcopy

from minipaged.reference.copy_on_write import _check_copies, copy_on_write, independent_copies  # noqa: F401


def copy_blocks(pool, sources, destinations):
    _check_copies(pool, sources, destinations)
    for source, destination in zip(sources, destinations, strict=True):
        for slot in range(len(pool[source]) - 1):
            pool[destination][slot] = deepcopy(pool[source][slot])
