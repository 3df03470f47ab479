"""Publishing ends at the first block that is findable already.

Words: where one is known go on with the next
"""

EDITS = {
    "if self._find(chain, index) is None and digest not in self._blocks:": (
        "if self._find(chain, index) is not None:\n"
        "                break\n"
        "            if digest not in self._blocks:"
    ),
}
