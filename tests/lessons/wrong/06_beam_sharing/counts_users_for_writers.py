"""All users of a last block but one need a copy.

Words: count the writers, not the users
"""

from minipaged.reference.beam_search import counts_after, fork_beams, reorder_beams  # noqa: F401


def copies_needed(block_tables, parents, allocator):
    parents = list(parents)
    counts = counts_after(block_tables, parents, allocator)
    continued = [block_tables[parent] for parent in parents]
    return sum(
        counts[block] - 1 for block in {table.blocks[-1] for table in continued if table.num_empty_slots}
    )
