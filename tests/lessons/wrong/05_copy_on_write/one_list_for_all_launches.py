"""The list of launches is kept and emptied, which saves a new one.

Words: both calls returned the same list
"""

from minipaged.reference import copy_on_write as right
from minipaged.reference.copy_on_write import _check_copies, copy_blocks, copy_on_write  # noqa: F401

launches = []


def independent_copies(pairs):
    launches[:] = right.independent_copies(pairs)
    return launches
