"""The results of the parts are averaged.

Words: average of the two results
"""

from minipaged.reference.attention import Partial, decode_attention, fold_block, visible_blocks  # noqa: F401


def merge_partials(partials):
    results = [[x / partial.total for x in partial.weighted] for partial in partials if partial.total]
    if not results:
        return [0.0] * len(partials[0].weighted)
    return [sum(column) / len(results) for column in zip(*results, strict=True)]
