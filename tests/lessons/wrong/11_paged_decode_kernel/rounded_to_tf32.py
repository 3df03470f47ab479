"""tl.dot computes in the dtype of its tiles.

Words: input_precision="ieee", TF32
"""

EDITS = {
    'scores = tl.dot(queries, tl.trans(keys), input_precision="ieee")': (
        "scores = tl.dot(queries, tl.trans(keys))"
    ),
}
