"""Watch Triton's interpreter: every load and store goes through one builder, with arrays of addresses.

`recording` in memory_map.py puts this into effect. Page: docs/lessons.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any
from unittest.mock import patch

import numpy as np

from .memory_accesses import Kind, OutOfBoundsError, Recording, require

_TORCH_NAMES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64", "int1": "bool"}
# The builder's methods that touch memory. A row holds what the method does there, and the positions of two
# arguments: the pointers and the mask (-1: there is no mask).
_ACCESSES: dict[str, tuple[tuple[Kind, ...], int, int]] = {
    "create_masked_load": (("read",), 0, 1),
    "create_masked_store": (("wrote",), 0, 2),
    "create_atomic_rmw": (("read", "wrote"), 1, 3),
    "create_atomic_cas": (("read", "wrote"), 0, -1),
}


def interprets_triton() -> bool:
    """Whether Triton kernels run in its interpreter."""
    try:
        import triton
    except ImportError:
        return False
    return bool(triton.knobs.runtime.interpret)


@contextmanager
def watched_triton(recorded: Recording) -> Iterator[None]:
    """Fill `recorded` with the accesses of interpreted kernels."""
    from triton.runtime import interpreter

    builder: Any = getattr(interpreter, "interpreter_builder", None)
    executor: Any = getattr(interpreter, "GridExecutor", None)
    require(executor, "__call__")
    require(builder, "set_grid_dim", "set_grid_idx", *_ACCESSES)
    run = executor.__call__
    num_axes = 3

    def watched(access: Callable[..., Any], kinds: tuple[Kind, ...], pointers_at: int, mask_at: int) -> Any:
        def note_and_access(*arguments: Any) -> Any:
            program = f"program ({', '.join(map(str, builder.grid_idx[:num_axes]))})"
            pointers, mask = arguments[pointers_at], arguments[mask_at] if mask_at >= 0 else None
            addresses = pointers.data.ravel()
            if mask is not None:
                addresses = addresses[np.broadcast_to(mask.data, pointers.data.shape).ravel().astype(bool)]
            element = str(pointers.get_element_ty())
            for kind in kinds:
                _note(recorded, program, kind, addresses, _TORCH_NAMES.get(element, element))
            return access(*arguments)

        return note_and_access

    def launch(self: Any, *arguments: Any, **options: Any) -> None:
        nonlocal num_axes
        num_axes = 3 if callable(self.grid) else len(self.grid)
        given = {**dict(zip(self.arg_names, arguments, strict=False)), **options}
        recorded.begin(self.fn.__name__)
        for name, value in given.items():
            if hasattr(value, "data_ptr"):
                recorded.add_argument(name.removesuffix("_ptr"), value)
        run(self, *arguments, **options)
        recorded.end(prod(builder.grid_dim))

    accesses = {name: watched(getattr(builder, name), *row) for name, row in _ACCESSES.items()}
    with patch.multiple(executor, __call__=launch), patch.multiple(builder, **accesses):
        yield


def poison_for(dtype: np.dtype, is_bfloat16: bool = False) -> Any:
    """NaN, or an integer far beyond every test's tensors; the interpreter keeps bfloat16 as uint16."""
    if is_bfloat16:
        return 0x7FC1
    return np.nan if dtype.kind == "f" else True if dtype.kind == "b" else np.iinfo(dtype).max // 3


@contextmanager
def poisoned_loads() -> Iterator[None]:
    """Let the interpreter's masked loads without `other` give poison; compiled kernels stay as they are.

    On a GPU a lane that `mask` hides holds anything, unless `other` says what. The interpreter puts 0 there.
    """
    if not interprets_triton():
        yield
        return
    from triton.runtime import interpreter

    builder: Any = getattr(interpreter, "interpreter_builder", None)
    require(builder, "create_masked_load")
    require(interpreter, "_get_np_dtype", "TensorHandle")
    load = builder.create_masked_load

    def poisoned_load(pointers: Any, mask: Any, other: Any, *rest: Any) -> Any:
        if other is None:
            element = pointers.get_element_ty()
            dtype = np.dtype(interpreter._get_np_dtype(element))
            poison = poison_for(dtype, str(element) == "bf16")
            other = interpreter.TensorHandle(np.full(pointers.data.shape, poison, dtype), element)
        return load(pointers, mask, other, *rest)

    with patch.object(builder, "create_masked_load", poisoned_load):
        yield


def _note(recorded: Recording, program: str, kind: Kind, addresses: np.ndarray, dtype: str) -> None:
    """Record the element at each address. Raises OutOfBoundsError for the first address without one."""
    arrays = [array for array in recorded.arguments if array.dtype == dtype] or recorded.arguments
    unknown = np.ones(len(addresses), dtype=bool)
    elements = []
    for array in arrays:
        index, inside = array.locate(addresses)
        here = inside & unknown
        elements.append((array.name, [tuple(row) for row in index[here].tolist()]))
        unknown &= ~here
    if unknown.any():
        address = int(addresses[unknown][0])
        distances = [max(array.start - address, address - array.end + 1, 0) for array in arrays]
        nearest, *others = [arrays[i] for i, far in enumerate(distances) if far == min(distances)]
        also = f"; {', '.join(array.name for array in others)} may be meant as well" if others else ""
        raise OutOfBoundsError(f"{program} {kind} {nearest.describe(address)}{also}")
    for name, indices in elements:
        recorded.note(program, kind, name, indices)
