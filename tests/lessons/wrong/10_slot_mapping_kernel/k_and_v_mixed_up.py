"""V goes into the cache of K.

Words: K and V are mixed up
"""

EDITS = {
    """tl.store(key_slot, key, mask=inside)
        tl.store(value_slot, value, mask=inside)""": """tl.store(key_slot, value, mask=inside)
        tl.store(value_slot, key, mask=inside)""",
}
