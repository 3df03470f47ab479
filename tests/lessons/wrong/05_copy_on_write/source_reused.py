"""Only what was written is remembered: a source may be overwritten in the same launch.

Words: the source was reused, read by the first pair
"""

from minipaged.reference.copy_on_write import copy_blocks, copy_on_write  # noqa: F401


def independent_copies(pairs):
    launches, read, written = [], set(), set()
    for source, destination in pairs:
        if not launches or source in written or destination in written:
            launches.append([])
            read, written = set(), set()
        launches[-1].append((source, destination))
        read.add(source)
        written.add(destination)
    return launches
