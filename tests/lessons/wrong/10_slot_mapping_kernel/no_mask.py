"""There are as many tokens as lanes.

Words: lanes past num_tokens must be masked, positions[3], which has 3 entries
"""

EDITS = {
    """inside = tokens < num_tokens
    positions = tl.load(position_ptr + tokens, mask=inside, other=-1).to(tl.int64)
    rows = tl.load(sequence_ptr + tokens, mask=inside, other=-1).to(tl.int64)""": (
        """positions = tl.load(position_ptr + tokens).to(tl.int64)
    rows = tl.load(sequence_ptr + tokens).to(tl.int64)"""
    ),
    "tl.store(slot_ptr + tokens, slots, mask=inside)": "tl.store(slot_ptr + tokens, slots)",
}
