"""Both pools are taken to be as long as the first.

Words: compare with its length
"""

from minipaged.reference import swap
from minipaged.reference.swap import swap_in, swap_out  # noqa: F401


def swap_blocks(source_pool, destination_pool, sources, destinations):
    if any(not 0 <= block < len(source_pool) for block in destinations):
        raise ValueError("a destination is outside of the pool")
    swap.swap_blocks(source_pool, destination_pool, sources, destinations)
