"""Pools are compared by their content.

Words: tell them apart with `is`
"""

from minipaged.reference import swap
from minipaged.reference.swap import swap_in, swap_out  # noqa: F401


def swap_blocks(source_pool, destination_pool, sources, destinations):
    if source_pool == destination_pool:
        raise ValueError("both pools are the same")
    swap.swap_blocks(source_pool, destination_pool, sources, destinations)
