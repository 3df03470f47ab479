"""A child's table is its parent's: the same object.

Words: aliased, share a table object
"""

from minipaged.reference.beam_search import _check_beams, copies_needed, counts_after, reorder_beams  # noqa: F401


def fork_beams(block_tables, parents, allocator):
    parents = list(parents)
    _check_beams(block_tables, parents, allocator)
    new_tables = [block_tables[parent] for parent in parents]
    allocator.share([block for table in new_tables for block in table.blocks])
    for table in block_tables:
        allocator.free(table.blocks)
    return new_tables
