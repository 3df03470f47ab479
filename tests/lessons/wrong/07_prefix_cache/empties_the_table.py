"""The table is emptied, since its blocks are given up.

Words: list of blocks is the caller's
"""

EDITS = {
    "self._keep(unused)\n        return unused": (
        "self._keep(unused)\n        blocks.clear()\n        return unused"
    ),
}
