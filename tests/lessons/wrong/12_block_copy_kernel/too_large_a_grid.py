"""The grid has a thread for each word, however many there are.

Words: 65535
"""

EDITS = {
    "parts = min(max(1, num_words // (threads * 4)), 65535)": "parts = -(-num_words // threads)",
}
