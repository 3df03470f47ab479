"""The parts are brought to exp(0), not to the largest maximum.

Words: relative to 0 both parts weigh exp(-1000)
"""

from math import exp, inf

from minipaged.reference.attention import Partial, decode_attention, fold_block, visible_blocks  # noqa: F401


def merge_partials(partials):
    maximum = max(partial.maximum for partial in partials)
    if maximum == -inf:
        return [0.0] * len(partials[0].weighted)
    total = sum(exp(partial.maximum) * partial.total for partial in partials)
    return [
        sum(exp(partial.maximum) * partial.weighted[i] for partial in partials) / total
        for i in range(len(partials[0].weighted))
    ]
