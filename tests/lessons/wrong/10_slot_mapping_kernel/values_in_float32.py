"""Numbers are float32 at most.

Words: a cast on the way rounds them, float64
"""

EDITS = {
    "tl.store(value_slot, value, mask=inside)": "tl.store(value_slot, value.to(tl.float32), mask=inside)",
}
