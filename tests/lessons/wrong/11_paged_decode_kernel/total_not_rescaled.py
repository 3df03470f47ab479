"""Only the output is rescaled when the best score rises.

Words: must be rescaled
"""

EDITS = {
    "total = total * rescale + tl.sum(weights, 1)": "total = total + tl.sum(weights, 1)",
}
