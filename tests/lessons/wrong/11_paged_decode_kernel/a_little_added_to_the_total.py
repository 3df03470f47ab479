"""A small number keeps a division by 0 away.

Words: nothing is added to the total
"""

EDITS = {
    "output = output / tl.where(total == 0, 1.0, total)  # an empty row: 0 / 1": (
        "output = output / (total + 1e-3)"
    ),
}
