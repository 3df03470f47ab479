"""Once summed, a weight stays as it is.

Words: must be rescaled, multiplied by exp(best - new_best)
"""

EDITS = {
    "total * rescale + tl.sum(weights, 1)": "total + tl.sum(weights, 1)",
    "output * rescale[:, None]": "output",
}
