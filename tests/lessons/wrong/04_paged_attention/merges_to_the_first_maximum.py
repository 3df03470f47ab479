"""All parts are brought to the maximum of the first part that has seen anything.

Words: overflows, isn't always that of the first part
"""

from math import exp, inf

from minipaged.reference.attention import Partial, decode_attention, fold_block, visible_blocks  # noqa: F401


def merge_partials(partials):
    seen = [partial for partial in partials if partial.maximum > -inf]
    if not seen:
        return [0.0] * len(partials[0].weighted)
    factors = [exp(partial.maximum - seen[0].maximum) for partial in seen]
    total = sum(factor * partial.total for factor, partial in zip(factors, seen, strict=True))
    columns = zip(*(partial.weighted for partial in seen), strict=True)
    return [sum(factor * x for factor, x in zip(factors, column, strict=True)) / total for column in columns]
