"""Every beam that writes to a half-full block needs a copy of it, as long as there are two.

Words: one too many, the last writer
"""

from collections import Counter

from minipaged.reference.beam_search import counts_after, fork_beams, reorder_beams  # noqa: F401


def copies_needed(block_tables, parents, allocator):
    continued = [block_tables[parent] for parent in parents]
    writers = Counter(table.blocks[-1] for table in continued if table.num_empty_slots)
    return sum(number for number in writers.values() if number > 1)
