"""Where each beam goes on for itself its table can be handed back unseen.

Words: block 5 is free, comes before anything else
"""

from minipaged.reference import beam_search
from minipaged.reference.beam_search import copies_needed, counts_after, reorder_beams  # noqa: F401


def fork_beams(block_tables, parents, allocator):
    parents = list(parents)
    if parents == list(range(len(block_tables))):
        return list(block_tables)
    return beam_search.fork_beams(block_tables, parents, allocator)
