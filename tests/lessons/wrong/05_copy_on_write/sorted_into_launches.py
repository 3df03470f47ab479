"""A pair goes into the first launch that has no quarrel with it.

Words: don't sort it
"""

from minipaged.reference.copy_on_write import copy_blocks, copy_on_write  # noqa: F401


def independent_copies(pairs):
    launches = []
    for source, destination in pairs:
        for launch in launches:
            read, written = {s for s, _ in launch}, {d for _, d in launch}
            if source not in written and destination not in read | written:
                launch.append((source, destination))
                break
        else:
            launches.append([(source, destination)])
    return launches
