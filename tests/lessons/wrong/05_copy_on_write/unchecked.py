"""Whatever is asked for is copied, pair by pair.

Words: all pairs at the same time
"""

from copy import deepcopy

from minipaged.reference.copy_on_write import copy_on_write, independent_copies  # noqa: F401


def copy_blocks(pool, sources, destinations):
    for source, destination in zip(sources, destinations, strict=False):
        pool[destination] = deepcopy(pool[source])
