"""Each parent's last block is taken for a block of its own.

Words: by block, not of each parent
"""

from collections import Counter

from minipaged.reference.beam_search import counts_after, fork_beams, reorder_beams  # noqa: F401


def copies_needed(block_tables, parents, allocator):
    children = Counter(parents)
    return sum(number - 1 for parent, number in children.items() if block_tables[parent].num_empty_slots)
