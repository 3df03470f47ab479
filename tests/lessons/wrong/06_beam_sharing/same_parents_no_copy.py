"""Where each beam goes on for itself nothing has to be done.

Words: each beam goes on for itself, by who else names the last block
"""

from minipaged.reference import beam_search
from minipaged.reference.beam_search import _check_beams, copies_needed, counts_after, fork_beams  # noqa: F401


def reorder_beams(block_tables, parents, allocator):
    parents = list(parents)
    _check_beams(block_tables, parents, allocator)
    if parents == list(range(len(block_tables))):
        return fork_beams(block_tables, parents, allocator), []
    return beam_search.reorder_beams(block_tables, parents, allocator)
