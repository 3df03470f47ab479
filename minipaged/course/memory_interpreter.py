"""Triton's interpreter, watched: every load and store goes through one builder, with arrays of addresses.

`recording` in memory_map.py puts this into effect. Page: docs/lessons.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from .memory_accesses import Kind, OutOfBoundsError, Recording, replaced, require

_TORCH_NAMES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64", "int1": "bool"}


def interprets_triton() -> bool:
    """Whether Triton kernels run in its interpreter."""
    try:
        import triton
    except ImportError:
        return False
    return bool(triton.knobs.runtime.interpret)


@contextmanager
def watched_triton(recorded: Recording) -> Iterator[None]:
    """Let `recorded` know what interpreted kernels do."""
    from triton.runtime import interpreter

    builder: Any = getattr(interpreter, "interpreter_builder", None)
    executor: Any = getattr(interpreter, "GridExecutor", None)
    require(executor, "__call__")
    require(
        builder,
        "create_masked_load",
        "create_masked_store",
        "create_atomic_rmw",
        "create_atomic_cas",
        "set_grid_idx",
    )
    run, load, store = executor.__call__, builder.create_masked_load, builder.create_masked_store
    update, exchange = builder.create_atomic_rmw, builder.create_atomic_cas
    num_axes = 3

    def look(kinds: tuple[Kind, ...], pointers: Any, mask: Any) -> None:
        program = f"program ({', '.join(map(str, builder.grid_idx[:num_axes]))})"
        addresses = pointers.data.ravel()
        if mask is not None:
            addresses = addresses[np.broadcast_to(mask.data, pointers.data.shape).ravel().astype(bool)]
        element = str(pointers.get_element_ty())
        for kind in kinds:
            _look(recorded, program, kind, addresses, _TORCH_NAMES.get(element, element))

    def masked_load(pointers: Any, mask: Any, *rest: Any) -> Any:
        look(("read",), pointers, mask)
        return load(pointers, mask, *rest)

    def masked_store(pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        look(("wrote",), pointers, mask)
        return store(pointers, value, mask, *rest)

    def atomic_update(operation: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        look(("read", "wrote"), pointers, mask)
        return update(operation, pointers, value, mask, *rest)

    def atomic_exchange(pointers: Any, *rest: Any) -> Any:
        look(("read", "wrote"), pointers, None)
        return exchange(pointers, *rest)

    def launch(self: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal num_axes
        num_axes = 3 if callable(self.grid) else len(self.grid)
        given = {**dict(zip(self.arg_names, arguments, strict=False)), **options}
        recorded.begin(self.fn.__name__)
        for name, value in given.items():
            if hasattr(value, "data_ptr"):
                recorded.know(name.removesuffix("_ptr"), value)
        return run(self, *arguments, **options)

    with (
        replaced(executor, __call__=launch),
        replaced(
            builder,
            create_masked_load=masked_load,
            create_masked_store=masked_store,
            create_atomic_rmw=atomic_update,
            create_atomic_cas=atomic_exchange,
        ),
    ):
        yield


def _look(recorded: Recording, program: str, kind: Kind, addresses: np.ndarray, dtype: str) -> None:
    """Note the element at each address. Raises OutOfBoundsError for the first address that has none."""
    arguments = [each for each in recorded.arguments if each.dtype == dtype] or recorded.arguments
    unknown = np.ones(len(addresses), dtype=bool)
    found = []
    for known in arguments:
        index, inside = known.locate(addresses)
        here = inside & unknown
        found.append((known.name, [tuple(row) for row in index[here].tolist()]))
        unknown &= ~here
    if unknown.any():
        address = int(addresses[unknown][0])
        distances = [max(known.start - address, address - known.end + 1, 0) for known in arguments]
        nearest, *others = [
            known for known, far in zip(arguments, distances, strict=True) if far == min(distances)
        ]
        also = f"; {', '.join(known.name for known in others)} may be meant as well" if others else ""
        raise OutOfBoundsError(f"{program} {kind} {nearest.describe(address)}{also}")
    for name, indices in found:
        recorded.note(program, kind, name, indices)
