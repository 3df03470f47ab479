"""Splits are added up as they are.

Words: relative to its own best
"""

EDITS = {
    "weights = tl.exp(split_best - new_best)": "weights = tl.where(inside, 1.0, 0.0).to(wide)",
}
