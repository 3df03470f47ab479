"""An empty table has nothing to publish.

Words: the table must have them
"""

EDITS = {
    "num_full = min(": ("if not blocks:\n            return\n        num_full = min("),
}
