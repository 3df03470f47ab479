"""Where the first block is known the whole sequence was published before.

Words: where one is known go on with the next
"""

EDITS = {
    "for index in range(start, stop):": (
        "if start < stop and self._find(chain, start) is not None:\n"
        "            return\n"
        "        for index in range(start, stop):"
    ),
}
