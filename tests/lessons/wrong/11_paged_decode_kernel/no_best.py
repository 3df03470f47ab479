"""Scores are small, so exp needs no maximum.

Words: exp(score) overflows
"""

EDITS = {
    'shift = tl.where(new_best == float("-inf"), 0.0, new_best)': "shift = tl.zeros_like(new_best)",
    "rescale = tl.exp(best - shift)": "rescale = tl.exp(shift)",
    "return output, best, total": "return output, best * 0, total",
}
