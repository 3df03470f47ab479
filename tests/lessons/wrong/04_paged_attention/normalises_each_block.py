"""Each block gets a softmax of its own, as if its weights had to add up to 1.

Words: normalised per block, divide once
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
    weights = [weight / sum(weights) for weight in weights]
    weighted = [
        x * rescale + sum(w * value[i] for w, value in zip(weights, values, strict=True))
        for i, x in enumerate(partial.weighted)
    ]
    return Partial(maximum, partial.total * rescale + sum(weights), weighted)
