"""One thread block copies a whole block, however large it is.

Words: parts grows with the words
"""

EDITS = {
    "parts = min(max(1, num_words // (threads * 4)), 65535)": "parts = 1",
}
