"""Only those beams that were continued are given up.

Words: pruned beam's blocks leak
"""

from minipaged.reference.beam_search import _check_beams, copies_needed, counts_after, reorder_beams  # noqa: F401


def fork_beams(block_tables, parents, allocator):
    parents = list(parents)
    _check_beams(block_tables, parents, allocator)
    new_tables = [block_tables[parent].fork() for parent in parents]
    for table in new_tables:
        allocator.share(table.blocks)
    for parent in set(parents):
        allocator.free(block_tables[parent].blocks)
    return new_tables
