"""swap_blocks copies until it meets an id that is none.

Words: before the first copy
"""

from copy import deepcopy

from minipaged.reference.swap import swap_in, swap_out  # noqa: F401


def swap_blocks(source_pool, destination_pool, sources, destinations):
    if source_pool is destination_pool or len(sources) != len(destinations):
        raise ValueError("pools or lengths")
    seen = set()
    for source, destination in zip(sources, destinations, strict=True):
        if not 0 <= source < len(source_pool) or not 0 <= destination < len(destination_pool):
            raise ValueError("no such block")
        if destination in seen:
            raise ValueError("twice")
        seen.add(destination)
        destination_pool[destination] = deepcopy(source_pool[source])
