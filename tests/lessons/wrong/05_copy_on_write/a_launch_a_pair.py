"""Each pair gets a launch of its own, which is always right, and slow.

Words: a launch costs time
"""

from minipaged.reference.copy_on_write import copy_blocks, copy_on_write  # noqa: F401


def independent_copies(pairs):
    return [[pair] for pair in pairs]
