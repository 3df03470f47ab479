"""A link needs the one before it: `self[index - 1]`.

Words: make the missing links in a loop
"""

EDITS = {
    "while len(self._links) <= index + 1:\n            start": (
        "if len(self._links) <= index + 1:\n"
        "            if index:\n"
        "                self[index - 1]\n"
        "            start"
    ),
}
