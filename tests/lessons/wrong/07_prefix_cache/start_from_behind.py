"""A negative start counts from the end of the table.

Words: start is negative
"""

EDITS = {
    "if start < 0 or stop > num_full:": "if stop > num_full:",
    "for index in range(start, stop):": "for index in range(max(start, 0), stop):",
}
