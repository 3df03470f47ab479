"""A slot of -1 is written like any other.

Words: slot -1 is padding, wrote key_cache[-1, 1, 0, 0]
"""

EDITS = {
    "if (slot < 0) | (slot >= num_slots):": "if slot >= num_slots:",
}
