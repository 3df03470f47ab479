"""The old tables are given up before the new ones are counted.

Words: fall to zero in between, share the blocks of all new tables first
"""

from minipaged.reference.beam_search import _check_beams, copies_needed, counts_after, reorder_beams  # noqa: F401


def fork_beams(block_tables, parents, allocator):
    parents = list(parents)
    _check_beams(block_tables, parents, allocator)
    new_tables = [block_tables[parent].fork() for parent in parents]
    for table in block_tables:
        allocator.free(table.blocks)
    for table in new_tables:
        allocator.share(table.blocks)
    return new_tables
