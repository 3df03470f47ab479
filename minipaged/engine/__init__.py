"""All that a step passes through, from a request to its next token; `engine.py` is the loop."""
