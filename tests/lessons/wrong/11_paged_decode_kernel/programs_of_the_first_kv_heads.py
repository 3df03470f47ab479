"""The remainder says which KV head a program has.

Words: no program has written head 1
"""

EDITS = {
    "kv_head = (program // head_tiles).to(tl.int64)": "kv_head = (program % head_tiles).to(tl.int64)",
}
