"""Each beam is replaced alone: share its parent's blocks, free its own, and go on to the next.

Words: fall to zero in between
"""

from minipaged.reference.beam_search import _check_beams, copies_needed, counts_after, reorder_beams  # noqa: F401


def fork_beams(block_tables, parents, allocator):
    parents = list(parents)
    _check_beams(block_tables, parents, allocator)
    new_tables = []
    for i, parent in enumerate(parents):
        new_tables.append(block_tables[parent].fork())
        allocator.share(new_tables[-1].blocks)
        if i < len(block_tables):
            allocator.free(block_tables[i].blocks)
    for table in block_tables[len(parents) :]:
        allocator.free(table.blocks)
    return new_tables
