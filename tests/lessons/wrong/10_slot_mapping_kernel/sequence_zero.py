"""A sequence id is above 0.

Words: position 0 and sequence id 0 are like any other
"""

EDITS = {
    "(rows >= 0)": "(rows > 0)",
}
