"""What copy_on_write returns is handed on as it is.

Words: leave those out
"""

from minipaged.reference.beam_search import _check_room, copies_needed, counts_after, fork_beams  # noqa: F401
from minipaged.reference.copy_on_write import copy_on_write


def reorder_beams(block_tables, parents, allocator):
    parents = list(parents)
    _check_room(block_tables, [p for p in parents if 0 <= p < len(block_tables)], allocator)
    tables = fork_beams(block_tables, parents, allocator)
    return tables, [copy_on_write(t.blocks, len(t) - 1, allocator) for t in tables if t.num_empty_slots]
