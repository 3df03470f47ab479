"""A new maximum is noted, but what was summed relative to the old one stays as it is.

Words: was not rescaled, relative to the old maximum
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
    weights = [exp(score - maximum) for score in scores]
    weighted = [
        x + sum(w * value[i] for w, value in zip(weights, values, strict=True))
        for i, x in enumerate(partial.weighted)
    ]
    return Partial(maximum, partial.total + sum(weights), weighted)
