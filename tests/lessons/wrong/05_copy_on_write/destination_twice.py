"""Two copies into one block share a launch.

Words: the later one counts
"""

from minipaged.reference.copy_on_write import copy_blocks, copy_on_write  # noqa: F401


def independent_copies(pairs):
    launches, read, written = [], set(), set()
    for source, destination in pairs:
        if not launches or source in written or destination in read:
            launches.append([])
            read, written = set(), set()
        launches[-1].append((source, destination))
        read.add(source)
        written.add(destination)
    return launches
