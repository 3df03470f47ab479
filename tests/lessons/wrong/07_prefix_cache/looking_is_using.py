"""What a prompt has found was just used, so it goes to the end of the line.

Words: to look is not to touch, puts it at the end
"""

EDITS = {
    "found.append(block)\n        return found": (
        "found.append(block)\n"
        "        for block in found:\n"
        "            if block in self._unused:\n"
        "                self._unused.move_to_end(block)\n"
        "        return found"
    ),
}
