"""The new beams' uses are added, and the old ones never taken off.

Words: the old tables are given up, too many uses
"""

from collections import Counter

from minipaged.reference.beam_search import copies_needed, fork_beams, reorder_beams  # noqa: F401


def counts_after(block_tables, parents, allocator):
    counts = Counter()
    for table in block_tables:
        for block in table.blocks:
            counts[block] = allocator.reference_count(block)
    for parent in parents:
        counts.update(block_tables[parent].blocks)
    return counts
