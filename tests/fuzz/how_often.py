"""How many cases a test tries: a sample in `make test`, all of them in `make fuzz`."""

import os

UNDER_FUZZ = os.environ.get("MINIPAGED_FUZZ") == "1"  # `make fuzz` sets it


def how_often(sample: int, full: int) -> int:
    """Return `sample` or, under `make fuzz`, `full`; MINIPAGED_FUZZ_TIMES names another number for both."""
    return int(os.environ.get("MINIPAGED_FUZZ_TIMES", full if UNDER_FUZZ else sample))
