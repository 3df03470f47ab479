"""`num_words // (threads * 4)` parts, which are none for a small block: nothing runs.

Words: at least one part
"""

EDITS = {
    "parts = min(max(1, num_words // (threads * 4)), 65535)": (
        "parts = min(num_words // (threads * 4), 65535)"
    ),
}
