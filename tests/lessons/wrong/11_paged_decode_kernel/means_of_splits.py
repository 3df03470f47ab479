"""Each split is normalised, and their mean is taken.

Words: relative to its own best
"""

EDITS = {
    """total = total * rescale + tl.sum(split_total * weights, 0)
        output = output * rescale + tl.sum(partial * weights[:, None], 0)""": (
        """total = total * rescale + tl.sum(weights, 0)
        output = output * rescale + tl.sum(
            partial / tl.where(split_total == 0, 1.0, split_total)[:, None] * weights[:, None], 0
        )"""
    ),
}
