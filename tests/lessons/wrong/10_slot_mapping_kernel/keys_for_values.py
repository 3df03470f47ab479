"""One stride for both: the strides of K serve V.

Words: these tensors are views
"""

EDITS = {
    "value_ptr += token * value_token_stride": "value_ptr += token * HEAD_DIM * NUM_KV_HEADS",
}
