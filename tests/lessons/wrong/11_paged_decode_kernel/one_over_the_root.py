"""The scale is one over the root of the head dimension.

Words: the factor is SCALE
"""

EDITS = {
    'input_precision="ieee") * SCALE': 'input_precision="ieee") / (HEAD_DIM**0.5)',
}
