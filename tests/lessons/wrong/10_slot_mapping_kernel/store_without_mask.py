"""Loads are masked, so the store need not be.

Words: lanes past num_tokens must be masked, wrote slots[3]
"""

EDITS = {
    "tl.store(slot_ptr + tokens, slots, mask=inside)": "tl.store(slot_ptr + tokens, slots)",
}
