"""The block's own tokens and those of the block before it are compared.

Words: not only the last two links
"""

EDITS = {
    "if not known.same_tokens(link):": (
        "def two(each):\n"
        "            return each.content, each.parent.content, each.parent.parent is None\n"
        "\n"
        "        if two(known) != two(link):"
    ),
}
