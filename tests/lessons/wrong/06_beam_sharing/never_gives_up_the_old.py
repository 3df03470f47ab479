"""The old tables are dropped, and nobody is told.

Words: given up once
"""

from minipaged.reference.beam_search import _check_beams, copies_needed, counts_after, reorder_beams  # noqa: F401


def fork_beams(block_tables, parents, allocator):
    parents = list(parents)
    _check_beams(block_tables, parents, allocator)
    new_tables = [block_tables[parent].fork() for parent in parents]
    allocator.share([block for table in new_tables for block in table.blocks])
    return new_tables
