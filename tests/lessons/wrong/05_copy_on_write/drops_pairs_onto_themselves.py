"""A block copied onto itself is no copy, so the pair is left out.

Words: it leaves out nothing
"""

from minipaged.reference import copy_on_write as right
from minipaged.reference.copy_on_write import _check_copies, copy_blocks, copy_on_write  # noqa: F401


def independent_copies(pairs):
    return right.independent_copies(
        [(source, destination) for source, destination in pairs if source != destination]
    )
