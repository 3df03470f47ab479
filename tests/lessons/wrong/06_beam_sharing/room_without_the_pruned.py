"""The copies must fit into what is free before the fork.

Words: the pruned beam gives up its one
"""

from minipaged.reference import beam_search
from minipaged.reference.allocator import OutOfBlocksError
from minipaged.reference.beam_search import _check_beams, copies_needed, counts_after, fork_beams  # noqa: F401


def reorder_beams(block_tables, parents, allocator):
    parents = list(parents)
    _check_beams(block_tables, parents, allocator)
    needed = copies_needed(block_tables, parents, allocator)
    if needed > allocator.num_available:
        raise OutOfBlocksError(needed, allocator.num_available)
    return beam_search.reorder_beams(block_tables, parents, allocator)
