"""A new pool is built and returned; the one that was passed stays as it was.

Words: changed in place
"""

from copy import deepcopy

from minipaged.reference.copy_on_write import _check_copies, copy_on_write, independent_copies  # noqa: F401


def copy_blocks(pool, sources, destinations):
    _check_copies(pool, sources, destinations)
    pool = deepcopy(pool)
    for source, destination in zip(sources, destinations, strict=True):
        pool[destination] = deepcopy(pool[source])
    return pool
