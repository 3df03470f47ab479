"""The parts are added up as they are, whatever each is relative to.

Words: a maximum of its own
"""

from math import inf

from minipaged.reference.attention import Partial, decode_attention, fold_block, visible_blocks  # noqa: F401


def merge_partials(partials):
    if all(partial.maximum == -inf for partial in partials):
        return [0.0] * len(partials[0].weighted)
    total = sum(partial.total for partial in partials)
    return [
        sum(partial.weighted[i] for partial in partials) / total for i in range(len(partials[0].weighted))
    ]
