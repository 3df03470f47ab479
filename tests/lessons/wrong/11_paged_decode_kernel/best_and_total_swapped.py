"""The order of what is returned is free.

Words: best and total have changed places
"""

EDITS = {
    "return output, best, total": "return output, total, best",
}
