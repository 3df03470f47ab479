"""The elements of a head lie side by side: in keys too.

Words: from one dim of keys to the next it is key_dim_stride
"""

EDITS = {
    "dim * key_dim_stride": "dim",
}
