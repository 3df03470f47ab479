"""Which program of a kernel read and wrote which elements: a toy launch, watched in an interpreter.

    with recording(block_tables=block_tables, key_cache=key_cache) as recorded:
        launch_slot_mapping(block_tables, ...)         # in Triton's interpreter, or in Numba's CUDA simulator
    recorded.accesses                                  # one Access for each element, in order
    print(draw(recorded, "key_cache"))                 # memory_drawing.py

A kernel's array arguments are known by the names of its parameters (less `_ptr`), those that the caller names
by these. An access outside of every known array raises OutOfBoundsError before it touches memory. What this
file knows of the inside of triton and numba stands here alone. Page: docs/lessons.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

Kind = Literal["read", "wrote"]
_TORCH_NAMES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64", "int1": "bool"}


class OutOfBoundsError(IndexError):
    """A kernel used memory that belongs to none of its arrays; the message names program, array and index."""


@dataclass(frozen=True)
class Access:
    """One element of one array, read or written by one program of a launch."""

    kernel: str
    program: str  # "program (2, 0)" in Triton, "block (1, 0), thread 3" in Numba
    kind: Kind
    array: str
    index: tuple[int, ...]


@dataclass
class Recording:
    """What launches have read and written so far, and the arrays that are known."""

    accesses: list[Access] = field(default_factory=list)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    named: dict[str, Known] = field(default_factory=dict)
    arguments: list[Known] = field(default_factory=list)  # of the launch that runs
    kernel: str = ""

    def read(self, array: str) -> set[tuple[int, ...]]:
        """Indices of the elements of `array` that were read."""
        return {a.index for a in self.accesses if a.array == array and a.kind == "read"}

    def written(self, array: str) -> list[tuple[int, ...]]:
        """Indices of the elements of `array` that were written, as often as they were."""
        return [a.index for a in self.accesses if a.array == array and a.kind == "wrote"]

    def begin(self, kernel: str) -> None:
        """A launch begins: its arguments are not known yet."""
        self.kernel, self.arguments = kernel, []

    def know(self, name: str, array: Any) -> Known:
        """An argument of the launch that begins, by its own name or by the one its caller gave it."""
        known = Known(name, array)
        known = next((each for each in self.named.values() if each.is_same(known)), known)
        if known.name in self.named and known is not self.named[known.name]:
            known.name += " (argument)"  # the caller calls something else so
        self.shapes[known.name] = known.shape
        self.arguments.append(known)
        return known

    def note(self, program: str, kind: Kind, array: str, indices: Sequence[tuple[int, ...]]) -> None:
        """Elements were used by one program."""
        self.accesses += [Access(self.kernel, program, kind, array, index) for index in indices]


class Known:
    """An array of torch or NumPy: where each of its elements lies."""

    def __init__(self, name: str, array: Any) -> None:
        self.name = name
        self.shape = tuple(array.shape)
        self.dtype = str(array.dtype).removeprefix("torch.")
        if hasattr(array, "data_ptr"):
            self.start, self.width = array.data_ptr(), array.element_size()
            self.strides = tuple(array.stride())
        else:
            self.start, self.width = array.__array_interface__["data"][0], array.itemsize
            self.strides = tuple(stride // array.itemsize for stride in array.strides)
        self.axes = sorted(
            (axis for axis, stride in enumerate(self.strides) if stride > 0 and self.shape[axis] > 1),
            key=lambda axis: -self.strides[axis],
        )
        self.end = self.start + self.width * (
            1 + sum((self.shape[axis] - 1) * self.strides[axis] for axis in self.axes)
        )

    def is_same(self, other: Known) -> bool:
        """Whether it is the same view of the same memory."""
        mine, others = ((each.start, each.shape, each.strides, each.dtype) for each in (self, other))
        return mine == others

    def locate(self, addresses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The index [addresses, axes] of the element at each address, and where there is one.

        Outside of the array the index goes on along the outermost axis, below 0 or past its end.
        """
        distance = addresses.astype(np.int64) - np.int64(self.start)
        rest, misaligned = np.divmod(distance, self.width)
        index = np.zeros((len(addresses), len(self.shape)), dtype=np.int64)
        for axis in self.axes:
            index[:, axis], rest = np.divmod(rest, self.strides[axis])
        if len(self.shape) and not self.axes:
            index[:, 0], rest = rest, np.zeros_like(rest)
        inside = (rest == 0) & (misaligned == 0) & (index >= 0).all(1)
        return index, inside & (index < np.array(self.shape, dtype=np.int64)).all(1)

    def describe(self, address: int) -> str:
        """The address as an index of this array, for an error."""
        (index,), (inside,) = self.locate(np.array([address], dtype=np.int64))
        place = f"{self.name}[{', '.join(map(str, index))}]"
        if not inside and self.start <= address < self.end:
            steps = (address - self.start) // self.width
            return (
                f"what lies {steps} elements past the start of {self.name}, between its rows: "
                f"shape {list(self.shape)}, strides {list(self.strides)}"
            )
        return f"{place}, which has {size_of(self.shape)}"


def size_of(shape: tuple[int, ...]) -> str:
    """A shape in words, for an error."""
    if len(shape) != 1:
        return f"shape {list(shape)}"
    return f"{shape[0]} entries" if shape[0] != 1 else "1 entry"


def can_record() -> bool:
    """Whether kernels run where they can be watched: interpreted and simulated, not compiled."""
    from .memory_simulator import simulates_numba

    return _interprets_triton() or simulates_numba()


@contextmanager
def recording(**arrays: Any) -> Iterator[Recording]:
    """Watch the launches in this block, of Triton kernels and of Numba CUDA kernels.

    Args:
        arrays: torch tensors or NumPy arrays under the names that they are to have. Views are told apart:
            name the very view that is handed to the kernel. Memory between the rows of a view is outside.

    Raises:
        RuntimeError: kernels are compiled here, or the installed triton or numba isn't as this file knows it.
        OutOfBoundsError: from the launch. Triton's interpreter wraps it: it is the innermost `__cause__`.
    """
    from .memory_simulator import simulates_numba, watched_numba

    if not can_record():
        raise RuntimeError("memory accesses are seen where kernels are interpreted: set TRITON_INTERPRET=1")
    recorded = Recording()
    for name, array in arrays.items():
        recorded.named[name] = Known(name, array)
        recorded.shapes[name] = tuple(array.shape)
    with ExitStack() as stack:
        if _interprets_triton():
            stack.enter_context(_watched_triton(recorded))
        if simulates_numba():
            stack.enter_context(watched_numba(recorded))
        yield recorded


def require(owner: Any, *names: str) -> None:
    """Raise RuntimeError where a part of triton or numba lacks what this file uses of it."""
    if missing := [name for name in names if not hasattr(owner, name)]:
        raise RuntimeError(
            f"the installed triton or numba is unlike those that are known here: {owner!r} has no "
            f"{', '.join(missing)}, so memory accesses can't be seen"
        )


@contextmanager
def replaced(owner: Any, **new: Any) -> Iterator[None]:
    """Attributes replaced for a while."""
    own = {name: vars(owner)[name] for name in new if name in vars(owner)}
    for name, value in new.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name in new:
            delattr(owner, name)
        for name, value in own.items():
            setattr(owner, name, value)


# Triton's interpreter: every load and store goes through one builder, with NumPy arrays of addresses.


def _interprets_triton() -> bool:
    try:
        import triton
    except ImportError:
        return False
    return bool(triton.knobs.runtime.interpret)


@contextmanager
def _watched_triton(recorded: Recording) -> Iterator[None]:
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
