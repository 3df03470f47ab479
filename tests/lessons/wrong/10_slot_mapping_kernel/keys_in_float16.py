"""A cache is in float16.

Words: a cast on the way rounds them, at [1, 0, 0, 0]
"""

EDITS = {
    "tl.store(key_slot, key, mask=inside)": "tl.store(key_slot, key.to(tl.float16), mask=inside)",
}
