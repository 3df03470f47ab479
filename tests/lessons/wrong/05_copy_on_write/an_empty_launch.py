"""There is a launch even where there is nothing to copy.

Words: no launch at all
"""

from minipaged.reference.copy_on_write import copy_blocks, copy_on_write  # noqa: F401


def independent_copies(pairs):
    launches, read, written = [[]], set(), set()
    for source, destination in pairs:
        if source in written or destination in read | written:
            launches.append([])
            read, written = set(), set()
        launches[-1].append((source, destination))
        read.add(source)
        written.add(destination)
    return launches
