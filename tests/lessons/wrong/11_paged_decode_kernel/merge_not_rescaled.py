"""The first tile of splits holds the best one.

Words: rescale what was summed so far
"""

EDITS = {
    """rescale = tl.exp(best - new_best)
        total = total * rescale + tl.sum(split_total * weights, 0)
        output = output * rescale + tl.sum(partial * weights[:, None], 0)""": (
        """total = total + tl.sum(split_total * weights, 0)
        output = output + tl.sum(partial * weights[:, None], 0)"""
    ),
}
