"""exp of the score itself: no maximum is subtracted.

Words: overflows, subtract the maximum
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
    rescale = 1.0
    weights = [exp(score) / exp(maximum) for score in scores]
    weighted = [
        x * rescale + sum(w * value[i] for w, value in zip(weights, values, strict=True))
        for i, x in enumerate(partial.weighted)
    ]
    return Partial(maximum, partial.total * rescale + sum(weights), weighted)
