"""If the pool is full, copy_on_write will say so.

Words: all or nothing, _check_room first
"""

from minipaged.reference.beam_search import copies_needed, counts_after, fork_beams  # noqa: F401
from minipaged.reference.copy_on_write import copy_on_write


def reorder_beams(block_tables, parents, allocator):
    tables = fork_beams(block_tables, parents, allocator)
    pairs = [copy_on_write(t.blocks, len(t) - 1, allocator) for t in tables if t.num_empty_slots]
    return tables, [pair for pair in pairs if pair]
