"""A block that was swapped is taken out of its pool.

Words: the source is only read
"""

from minipaged.reference import swap
from minipaged.reference.swap import swap_in, swap_out  # noqa: F401


def swap_blocks(source_pool, destination_pool, sources, destinations):
    swap.swap_blocks(source_pool, list(destination_pool), sources, destinations)  # raises what must be raised
    for source, destination in zip(sources, destinations, strict=True):
        destination_pool[destination] = source_pool[source]
    for source in sources:
        source_pool[source] = None
