"""The pair's own source is noted before it is compared, so a pair onto itself meets itself.

Words: and not with itself
"""

from minipaged.reference.copy_on_write import _check_copies, copy_blocks, copy_on_write  # noqa: F401


def independent_copies(pairs):
    launches, read, written = [], set(), set()
    for source, destination in pairs:
        meets = source in written or destination in read | written | {source}
        if not launches or meets:
            launches.append([])
            read, written = set(), set()
        launches[-1].append((source, destination))
        read.add(source)
        written.add(destination)
    return launches
