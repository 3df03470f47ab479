"""A position is above 0.

Words: position 0 and sequence id 0 are like any other
"""

EDITS = {
    "known = (positions >= 0)": "known = (positions > 0)",
}
