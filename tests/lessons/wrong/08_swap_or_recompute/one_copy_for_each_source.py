"""A source that serves several destinations is copied once.

Words: two copies of one source
"""

from copy import deepcopy

from minipaged.reference import swap
from minipaged.reference.swap import swap_in, swap_out  # noqa: F401


def swap_blocks(source_pool, destination_pool, sources, destinations):
    swap.swap_blocks(source_pool, list(destination_pool), sources, destinations)
    seen = {}
    for source, destination in zip(sources, destinations, strict=True):
        destination_pool[destination] = deepcopy(source_pool[source], seen)
