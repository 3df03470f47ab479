"""The last block is copied at every fork, full or not.

Words: full block, exact multiple
"""

from minipaged.reference.beam_search import counts_after, fork_beams, reorder_beams  # noqa: F401


def copies_needed(block_tables, parents, allocator):
    parents = list(parents)
    return sum(len(block_tables[p]) > 0 for p in parents) - len({p for p in parents if len(block_tables[p])})
