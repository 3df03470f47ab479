"""The last writer keeps the block even where a sequence outside of this request reads it.

Words: somebody else reads this block
"""

from collections import Counter

from minipaged.reference.beam_search import counts_after, fork_beams, reorder_beams  # noqa: F401


def copies_needed(block_tables, parents, allocator):
    continued = [block_tables[parent] for parent in parents]
    writers = Counter(table.blocks[-1] for table in continued if table.num_empty_slots)
    return sum(number - 1 for number in writers.values())
