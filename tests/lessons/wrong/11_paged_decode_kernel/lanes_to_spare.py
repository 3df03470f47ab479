"""All lanes of a tile are heads of the group.

Words: no access outside
"""

EDITS = {
    "return kv_head, kv_head * GROUP + members, members < GROUP": (
        "return kv_head, kv_head * GROUP + members, members >= 0"
    ),
}
