"""An empty block is folded into an empty partial like any other.

Words: -inf minus -inf
"""

from math import exp

from minipaged.reference.attention import (  # noqa: F401
    Partial,
    decode_attention,
    merge_partials,
    visible_blocks,
)


def fold_block(partial, scores, values):
    maximum = max([partial.maximum, *scores])
    rescale = exp(partial.maximum - maximum)
    weights = [exp(score - maximum) for score in scores]
    weighted = [
        x * rescale + sum(w * value[i] for w, value in zip(weights, values, strict=True))
        for i, x in enumerate(partial.weighted)
    ]
    return Partial(maximum, partial.total * rescale + sum(weights), weighted)
