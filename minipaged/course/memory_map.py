"""Which program of a kernel read and wrote which elements: a toy launch, watched in an interpreter.

    with recording(block_tables=block_tables, key_cache=key_cache) as recorded:
        launch_slot_mapping(block_tables, ...)         # in Triton's interpreter, or in Numba's CUDA simulator
    recorded.accesses                                  # one Access for each element, in order
    print(draw(recorded, "key_cache"))                 # memory_drawing.py

An array has the name that the caller gives it, or else the name of the kernel's parameter (less `_ptr`). An
access outside of every known array raises OutOfBoundsError before it touches memory. Only
memory_interpreter.py and memory_simulator.py depend on the inside of triton and numba. Page: docs/lessons.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from .memory_accesses import OutOfBoundsError, Recording
from .memory_interpreter import interprets_triton, watched_triton
from .memory_simulator import simulates_numba, watched_numba

__all__ = ["OutOfBoundsError", "Recording", "can_record", "recording"]


def can_record() -> bool:
    """Whether kernels run where they can be watched: interpreted and simulated, not compiled."""
    return interprets_triton() or simulates_numba()


@contextmanager
def recording(**arrays: Any) -> Iterator[Recording]:
    """Watch the launches in this block, of Triton kernels and of Numba CUDA kernels.

    Args:
        arrays: torch tensors or NumPy arrays under the names that they are to have. Name the very view that
            the kernel gets. Memory between the rows of a view is outside.

    Raises:
        RuntimeError: kernels are compiled here, or the installed triton or numba lacks a name used here.
        OutOfBoundsError: from the launch. Triton's interpreter wraps it: it is the innermost `__cause__`.
    """
    if not can_record():
        raise RuntimeError("memory accesses are seen where kernels are interpreted: set TRITON_INTERPRET=1")
    recorded = Recording()
    for name, array in arrays.items():
        recorded.add_name(name, array)
    with ExitStack() as stack:
        if interprets_triton():
            stack.enter_context(watched_triton(recorded))
        if simulates_numba():
            stack.enter_context(watched_numba(recorded))
        yield recorded
