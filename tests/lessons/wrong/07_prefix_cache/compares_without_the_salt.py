"""All tokens are compared, from the first to the last.

Words: the salt is the content of the root
"""

EDITS = {
    "if not known.same_tokens(link):": (
        "def tokens(each):\n"
        "            return [*tokens(each.parent), *each.content] if each.parent else []\n"
        "\n"
        "        if tokens(known) != tokens(link):"
    ),
}
