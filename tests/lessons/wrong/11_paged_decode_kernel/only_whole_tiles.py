"""The number of tiles is a division.

Words: no key was read at all
"""

EDITS = {
    "for start in range(first // KEY_TILE * KEY_TILE, last, KEY_TILE):": (
        "for start in range(first, first + (last - first) // KEY_TILE * KEY_TILE, KEY_TILE):"
    ),
}
