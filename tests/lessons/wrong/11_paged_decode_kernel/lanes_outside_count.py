"""A lane that was not loaded is 0 and counts nothing.

Words: with a score of 0
"""

EDITS = {
    'scores = tl.where(visible, scores, float("-inf"))': (
        'scores = tl.where(positions[None, :] >= 0, scores, float("-inf"))'
    ),
}
