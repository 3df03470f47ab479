"""Only the new tables are counted: nobody else could use these blocks.

Words: whoever else uses the block
"""

from minipaged.reference.beam_search import copies_needed, fork_beams, reorder_beams  # noqa: F401


def counts_after(block_tables, parents, allocator):
    counts = {block: 0 for table in block_tables for block in table.blocks}
    for parent in parents:
        for block in block_tables[parent].blocks:
            counts[block] += 1
    return counts
