"""A small number is added to the total, so that it is never divided by 0.

Words: 1.000001, total is the sum of weights
"""

from minipaged.reference import attention
from minipaged.reference.attention import Partial, decode_attention, merge_partials, visible_blocks  # noqa: F401


def fold_block(partial, scores, values):
    maximum, total, weighted = attention.fold_block(partial, scores, values)
    return Partial(maximum, total + 1e-6, weighted)
