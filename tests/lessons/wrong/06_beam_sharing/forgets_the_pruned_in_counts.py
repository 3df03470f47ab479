"""Blocks of pruned beams have no count: they are gone.

Words: the blocks of pruned beams are missing
"""

from collections import Counter

from minipaged.reference.beam_search import copies_needed, fork_beams, reorder_beams  # noqa: F401


def counts_after(block_tables, parents, allocator):
    before = Counter(block for table in block_tables for block in table.blocks)
    after = Counter(block for parent in parents for block in block_tables[parent].blocks)
    return {block: allocator.reference_count(block) - before[block] + after[block] for block in after}
