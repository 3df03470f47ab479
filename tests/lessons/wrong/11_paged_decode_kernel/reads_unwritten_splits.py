"""All splits were written.

Words: were never written
"""

EDITS = {"last_split = tl.cdiv(length, SPLIT_LENGTH)": "last_split = num_splits"}
