"""Each pair is looked at when its turn comes, and those before it are copied by then.

Words: all or nothing
"""

from copy import deepcopy

from minipaged.reference.copy_on_write import _check_copies, copy_on_write, independent_copies  # noqa: F401


def copy_blocks(pool, sources, destinations):
    written = set()
    for i in range(max(len(sources), len(destinations))):
        if i >= min(len(sources), len(destinations)) or destinations[i] in written | set(sources):
            raise ValueError(i)
        _check_copies(pool, [sources[i]], [destinations[i]])
        pool[destinations[i]] = deepcopy(pool[sources[i]])
        written.add(destinations[i])
