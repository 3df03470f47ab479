"""Who must copy is decided by parent: the last child of a parent is alone in its last block.

Words: two beams would write to one block
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
    tables = [block_tables[parent].fork() for parent in parents]
    allocator.share([block for table in tables for block in table.blocks])
    writers = [t for i, t in enumerate(tables) if t.num_empty_slots and parents[i] in parents[i + 1 :]]
    pairs = [copy_on_write(t.blocks, len(t) - 1, allocator) for t in writers]
    for table in block_tables:
        allocator.free(table.blocks)
    return tables, [pair for pair in pairs if pair]
