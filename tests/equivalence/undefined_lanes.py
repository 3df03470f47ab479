"""Poison for the lanes that Triton leaves undefined: those that `mask` hides in a load without `other`.

On a GPU such a lane holds anything; Triton's interpreter puts 0 there, so that a kernel which counts on the 0
passes every test. With the fixture below the interpreter puts NaN there, or an integer that fits no pool.
`pytest -p undefined_lanes` gives it to all tests of a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from minipaged.course.memory_interpreter import interprets_triton


def poison_for(dtype: np.dtype, is_bfloat16: bool = False) -> Any:
    """NaN, or an integer far beyond every test's tensors; the interpreter keeps bfloat16 as uint16."""
    if is_bfloat16:
        return 0x7FC1
    return np.nan if dtype.kind == "f" else True if dtype.kind == "b" else np.iinfo(dtype).max // 3


@contextmanager
def poisoned_loads() -> Iterator[None]:
    """Let the interpreter's masked loads without `other` give poison; compiled kernels stay as they are."""
    if not interprets_triton():
        yield
        return
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    load = builder.create_masked_load

    def poisoned_load(pointers: Any, mask: Any, other: Any, *rest: Any) -> Any:
        if other is None:
            element = pointers.get_element_ty()
            dtype = np.dtype(interpreter._get_np_dtype(element))
            poison = poison_for(dtype, str(element) == "bf16")
            other = interpreter.TensorHandle(np.full(pointers.data.shape, poison, dtype), element)
        return load(pointers, mask, other, *rest)

    builder.create_masked_load = poisoned_load
    try:
        yield
    finally:
        del builder.create_masked_load


@pytest.fixture(scope="module", autouse=True)
def undefined_lanes_hold_poison() -> Iterator[None]:
    """Run the tests of a file with poison in the lanes that no load defines, and no others."""
    with poisoned_loads():
        yield
