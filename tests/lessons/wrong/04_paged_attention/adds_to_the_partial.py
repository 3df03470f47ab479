"""The weighted sum is added to in place.

Words: build a new one
"""

from math import exp

from minipaged.reference.attention import (  # noqa: F401
    Partial,
    decode_attention,
    merge_partials,
    visible_blocks,
)


def fold_block(partial, scores, values):
    if not scores:
        return partial
    maximum = max(partial.maximum, *scores)
    rescale = exp(partial.maximum - maximum)
    weights = [exp(score - maximum) for score in scores]
    for i in range(len(partial.weighted)):
        partial.weighted[i] *= rescale
        for weight, value in zip(weights, values, strict=True):
            partial.weighted[i] += weight * value[i]
    return Partial(maximum, partial.total * rescale + sum(weights), partial.weighted)
