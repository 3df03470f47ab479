"""Which elements of which arrays the programs of a launch have read and written, and where an array lies.

memory_interpreter.py and memory_simulator.py fill a Recording in. Page: docs/lessons.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

Kind = Literal["read", "wrote"]


class OutOfBoundsError(IndexError):
    """A kernel used memory outside of its arrays; the message names program, array and index."""


@dataclass(frozen=True)
class Access:
    """One element of one array, read or written by one program of a launch."""

    kernel: str
    program: str  # "program (2, 0)" in Triton, "block (1, 0), thread 3" in Numba
    kind: Kind
    array: str
    index: tuple[int, ...]


@dataclass(frozen=True)
class Launch:
    """One launch that has ended."""

    kernel: str
    num_programs: int  # threads of all thread blocks in Numba


@dataclass
class Recording:
    """The reads and writes of all launches so far, and the arrays that are known."""

    accesses: list[Access] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    num_bytes: Counter[Kind] = field(default_factory=Counter)  # an element counts at each access
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    named: list[KnownArray] = field(default_factory=list)  # by the caller of `recording`
    arguments: list[KnownArray] = field(default_factory=list)  # of the launch that runs
    kernel: str = ""

    def read(self, array: str) -> set[tuple[int, ...]]:
        """Return the indices of the elements of `array` that were read."""
        return {a.index for a in self.accesses if a.array == array and a.kind == "read"}

    def written(self, array: str) -> list[tuple[int, ...]]:
        """Return the indices of the elements of `array` that were written, once per write."""
        return [a.index for a in self.accesses if a.array == array and a.kind == "wrote"]

    def begin(self, kernel: str) -> None:
        """Start a launch. Its arguments are not known yet."""
        self.kernel, self.arguments = kernel, []

    def end(self, num_programs: int) -> None:
        """End the launch."""
        self.launches.append(Launch(self.kernel, num_programs))

    def add_name(self, name: str, array: Any) -> None:
        """Give an array the name that it is to have in every launch."""
        self.named.append(KnownArray(name, array))
        self.shapes[name] = self.named[-1].shape

    def add_argument(self, name: str, array: Any) -> KnownArray:
        """Return an argument of the launch that begins, under its own name or the one its caller gave it."""
        argument = KnownArray(name, array)
        argument = next((known for known in self.named if known.view == argument.view), argument)
        if argument not in self.named and name in {known.name for known in self.named}:
            argument.name += " (argument)"  # the caller gave the name to another array
        self.shapes[argument.name] = argument.shape
        self.arguments.append(argument)
        return argument

    def note(self, program: str, kind: Kind, array: str, indices: Sequence[tuple[int, ...]]) -> None:
        """Record the elements that one program used, of an argument of the launch."""
        width = next(argument.width for argument in self.arguments if argument.name == array)
        self.num_bytes[kind] += len(indices) * width
        self.accesses += [Access(self.kernel, program, kind, array, index) for index in indices]


class KnownArray:
    """An array of torch or NumPy, and where each of its elements lies."""

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
        self.view = self.start, self.shape, self.strides, self.dtype
        self.axes = sorted(
            (axis for axis, stride in enumerate(self.strides) if stride > 0 and self.shape[axis] > 1),
            key=lambda axis: -self.strides[axis],
        )
        self.end = self.start + self.width * (
            1 + sum((self.shape[axis] - 1) * self.strides[axis] for axis in self.axes)
        )

    def locate(self, addresses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the index [addresses, axes] of the element at each address, and whether there is one.

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
        """Return the address as an index of this array, for an error."""
        (index,), (inside,) = self.locate(np.array([address], dtype=np.int64))
        if not inside and self.start <= address < self.end:
            steps = (address - self.start) // self.width
            return (
                f"what lies {steps} elements past the start of {self.name}, between its rows: "
                f"shape {list(self.shape)}, strides {list(self.strides)}"
            )
        return f"{self.name}[{', '.join(map(str, index))}], which has {size_of(self.shape)}"


def size_of(shape: tuple[int, ...]) -> str:
    """Return a shape in words, for an error."""
    if len(shape) != 1:
        return f"shape {list(shape)}"
    return f"{shape[0]} entries" if shape[0] != 1 else "1 entry"


def require(owner: Any, *names: str) -> None:
    """Raise RuntimeError if a part of triton or numba lacks a name that the recording uses."""
    if missing := [name for name in names if not hasattr(owner, name)]:
        raise RuntimeError(
            f"the installed triton or numba is unlike those that are known here: {owner!r} has no "
            f"{', '.join(missing)}, so memory accesses can't be seen"
        )
