"""The first child keeps its parent's block, the later ones get copies.

Words: in the order of the beams, each writer but the last
"""

from minipaged.reference.beam_search import (  # noqa: F401
    _check_beams,
    _check_room,
    copies_needed,
    counts_after,
    fork_beams,
)
from minipaged.reference.copy_on_write import copy_on_write


def reorder_beams(block_tables, parents, allocator):
    parents = list(parents)
    _check_beams(block_tables, parents, allocator)
    _check_room(block_tables, parents, allocator)
    tables = fork_beams(block_tables, parents, allocator)
    pairs = [copy_on_write(t.blocks, len(t) - 1, allocator) for t in reversed(tables) if t.num_empty_slots]
    return tables, [pair for pair in pairs if pair]
