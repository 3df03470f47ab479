"""The list of scores is at hand, so the weights are written into it.

Words: weights in a list of their own
"""

from math import exp

from minipaged.reference import attention
from minipaged.reference.attention import Partial, decode_attention, merge_partials, visible_blocks  # noqa: F401


def fold_block(partial, scores, values):
    folded = attention.fold_block(partial, scores, values)
    for i, score in enumerate(scores):
        scores[i] = exp(score - folded.maximum)
    return folded
