"""The table is masked and a weight of 0 counts nothing, so keys may be loaded from block 0.

Words: which is of none of its keys, must not be loaded at all
"""

EDITS = {
    "dims[None, :], mask=loaded, other=0.0)\n        scores": (
        "dims[None, :], mask=(dims < HEAD_DIM)[None, :], other=0.0)\n        scores"
    ),
}
