"""All pairs go into one launch, in the hope that it keeps their order.

Words: read by the first pair
"""

from minipaged.reference.copy_on_write import copy_blocks, copy_on_write  # noqa: F401


def independent_copies(pairs):
    return [list(pairs)] if pairs else []
