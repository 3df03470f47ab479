"""A word is a number.

Words: move it as it is, 9007199254740993
"""

EDITS = {
    "= source_words[source, word]": "= int(float(source_words[source, word]))",
}
