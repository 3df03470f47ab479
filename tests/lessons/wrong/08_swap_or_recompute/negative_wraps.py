"""Python's negative indices are taken for blocks.

Words: reads -1 as the last block
"""

from copy import deepcopy

from minipaged.reference.swap import swap_in, swap_out  # noqa: F401


def swap_blocks(source_pool, destination_pool, sources, destinations):
    if source_pool is destination_pool or len(sources) != len(destinations):
        raise ValueError("pools or lengths")
    if len(set(destinations)) != len(destinations):
        raise ValueError("twice")
    if any(s >= len(source_pool) for s in sources) or any(d >= len(destination_pool) for d in destinations):
        raise ValueError("no such block")
    for source, destination in zip(sources, destinations, strict=True):
        destination_pool[destination] = deepcopy(source_pool[source])
