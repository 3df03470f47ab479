"""A sequence id that is no row is always -1.

Words: a sequence id that is no row of the table, block_tables[-2
"""

EDITS = {
    "(rows >= 0)": "(rows != -1)",
}
