"""Each tile of splits has a best of its own, and the last one stays.

Words: best is the largest of all so far
"""

EDITS = {
    "new_best = tl.maximum(best, tl.max(split_best, 0))": (
        'new_best = tl.maximum(float("-inf"), tl.max(split_best, 0))'
    ),
}
