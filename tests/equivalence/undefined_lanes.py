"""Poison for the lanes that Triton leaves undefined: those that `mask` hides in a load without `other`.

On a GPU such a lane holds anything; Triton's interpreter puts 0 there, so that a kernel which counts on the 0
passes every test. With the fixture below the interpreter puts NaN there, or an integer that fits no pool.
`pytest -p undefined_lanes` gives it to all tests of a run.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from minipaged.course.memory_interpreter import poisoned_loads


@pytest.fixture(scope="module", autouse=True)
def undefined_lanes_hold_poison() -> Iterator[None]:
    """Run every test with poison in the lanes that no load defines; tests of other folders run without it."""
    with poisoned_loads():
        yield
