"""The next token begins where the heads of one end.

Words: it is not heads times key_head_stride
"""

EDITS = {
    "token * key_token_stride": "token * NUM_KV_HEADS * key_head_stride",
}
