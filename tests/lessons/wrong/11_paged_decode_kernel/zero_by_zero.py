"""An empty row divides as any other.

Words: the output 0 (0 / 0 is NaN)
"""

EDITS = {
    "output = output / tl.where(total == 0, 1.0, total)  # an empty row: 0 / 1": "output = output / total",
}
