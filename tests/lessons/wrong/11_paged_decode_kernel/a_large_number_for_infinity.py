"""-10000 is as good as -inf.

Words: float('-inf'), no large number
"""

EDITS = {
    'scores = tl.where(visible, scores, float("-inf"))': "scores = tl.where(visible, scores, -1e4)",
}
