"""All splits fit in one tile.

Words: more splits than SPLIT_TILE
"""

EDITS = {
    "for start in range(first_split, last_split, SPLIT_TILE):": (
        "for start in range(first_split, tl.minimum(last_split, 1), SPLIT_TILE):"
    ),
}
