"""Each tile gets a softmax of its own.

Words: normalised by itself, softmax per tile
"""

EDITS = {
    "rescale = tl.exp(best - shift)": """weights = weights / tl.sum(weights, 1)[:, None]
        rescale = tl.exp(best - shift)""",
}
