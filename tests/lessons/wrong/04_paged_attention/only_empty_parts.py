"""That all parts may be empty is not thought of.

Words: -inf minus -inf, zeros
"""

from math import exp

from minipaged.reference.attention import Partial, decode_attention, fold_block, visible_blocks  # noqa: F401


def merge_partials(partials):
    maximum = max(partial.maximum for partial in partials)
    total = sum(exp(partial.maximum - maximum) * partial.total for partial in partials)
    return [
        sum(exp(partial.maximum - maximum) * partial.weighted[i] for partial in partials) / total
        for i in range(len(partials[0].weighted))
    ]
