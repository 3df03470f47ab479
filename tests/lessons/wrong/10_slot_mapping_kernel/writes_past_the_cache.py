"""Slots are always in the cache.

Words: a slot from num_slots on lies behind the cache
"""

EDITS = {
    "if (slot < 0) | (slot >= num_slots):": "if slot < 0:",
}
