"""A fork makes sure that there is room for the copies that will follow it.

Words: a fork copies nothing
"""

from minipaged.reference import beam_search
from minipaged.reference.beam_search import _check_room, copies_needed, counts_after, reorder_beams  # noqa: F401


def fork_beams(block_tables, parents, allocator):
    parents = list(parents)
    beam_search._check_beams(block_tables, parents, allocator)
    _check_room(block_tables, parents, allocator)
    return beam_search.fork_beams(block_tables, parents, allocator)
