"""Each part is divided by its total before the parts are put together.

Words: empty part
"""

from math import exp, inf

from minipaged.reference.attention import Partial, decode_attention, fold_block, visible_blocks  # noqa: F401


def merge_partials(partials):
    maximum = max(partial.maximum for partial in partials)
    if maximum == -inf:
        return [0.0] * len(partials[0].weighted)
    shares = [exp(partial.maximum - maximum) * partial.total for partial in partials]
    results = [[x / partial.total for x in partial.weighted] for partial in partials]
    columns = zip(*results, strict=True)
    return [sum(s * x for s, x in zip(shares, column, strict=True)) / sum(shares) for column in columns]
