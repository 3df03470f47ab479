"""A program reads all keys up to the end of its split.

Words: a program begins at `first`
"""

EDITS = {
    "for start in range(first // KEY_TILE * KEY_TILE, last, KEY_TILE):": (
        "for start in range(0, last, KEY_TILE):"
    ),
    "inside = (positions >= first) & (positions < last)": "inside = positions < last",
}
