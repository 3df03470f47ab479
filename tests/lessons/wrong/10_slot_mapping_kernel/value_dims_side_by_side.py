"""The elements of a head lie side by side: in values too.

Words: from one dim of values to the next it is value_dim_stride
"""

EDITS = {
    "dim * value_dim_stride": "dim",
}
