"""A block is shared once, however often it is named.

Words: named twice
"""

EDITS = {
    "blocks = list(blocks)": "blocks = list(dict.fromkeys(blocks))",
}
