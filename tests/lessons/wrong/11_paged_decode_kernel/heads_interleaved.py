"""Query head h reads KV head h % num_kv_heads.

Words: group index
"""

EDITS = {
    "return kv_head, kv_head * GROUP + members, members < GROUP": (
        "return kv_head, kv_head + members * (tl.num_programs(1) // head_tiles), members < GROUP"
    ),
}
