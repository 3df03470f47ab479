"""The maximum starts at 0, as a total does.

Words: relative to 0
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
    maximum = max(partial.maximum, 0.0, *scores)
    rescale = exp(partial.maximum - maximum)
    weights = [exp(score - maximum) for score in scores]
    weighted = [
        x * rescale + sum(w * value[i] for w, value in zip(weights, values, strict=True))
        for i, x in enumerate(partial.weighted)
    ]
    return Partial(maximum, partial.total * rescale + sum(weights), weighted)
