"""Whatever the last block holds, each beam gets one of its own.

Words: nothing is to be copied here, a full block is written by nobody
"""

from minipaged.reference.beam_search import _check_room, copies_needed, counts_after, fork_beams  # noqa: F401
from minipaged.reference.copy_on_write import copy_on_write


def reorder_beams(block_tables, parents, allocator):
    parents = list(parents)
    _check_room(block_tables, [p for p in parents if 0 <= p < len(block_tables)], allocator)
    tables = fork_beams(block_tables, parents, allocator)
    pairs = [copy_on_write(t.blocks, len(t) - 1, allocator) for t in tables if len(t)]
    return tables, [pair for pair in pairs if pair]
