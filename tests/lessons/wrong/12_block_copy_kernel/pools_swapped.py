"""The copy goes the wrong way, from the second pool to the first.

Words: swapped, pool that it reads from
"""

EDITS = {
    "destination_words[destination, word] = source_words[source, word]": (
        "source_words[source, word] = destination_words[destination, word]"
    ),
}
