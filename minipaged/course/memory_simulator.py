"""Watch Numba's CUDA simulator: a kernel gets arrays that note the reads and writes of each thread.

`recording` in memory_map.py puts this into effect. Page: docs/lessons.md.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any
from unittest.mock import patch

import numpy as np

from .memory_accesses import Kind, KnownArray, OutOfBoundsError, Recording, require, size_of


def simulates_numba() -> bool:
    """Whether `numba.cuda` is its simulator."""
    try:
        from numba import config
    except ImportError:
        return False
    return bool(config.ENABLE_CUDASIM)


@contextmanager
def watched_numba(recorded: Recording) -> Iterator[None]:
    """Fill `recorded` with the accesses of simulated kernels."""
    from numba.cuda.simulator import kernel as simulator

    kernel_class: Any = getattr(simulator, "FakeCUDAKernel", None)
    require(kernel_class, "__call__")
    run = kernel_class.__call__

    def launch(self: Any, *arguments: Any) -> Any:
        if hasattr(
            threading.current_thread(), "blockIdx"
        ):  # a device function: its arrays are watched already
            return run(self, *arguments)
        recorded.begin(self.fn.__name__)
        threads = _Threads(recorded, self)
        names = inspect.signature(self.fn).parameters
        try:
            run(self, *map(threads.watch, names, arguments))
        except OutOfBoundsError as error:  # the simulator's copy, which says where once more
            raise threads.errors[0].with_traceback(error.__traceback__) from None
        recorded.end(prod((*self.grid_dim, *self.block_dim)))
        return None  # as a kernel does

    with patch.object(kernel_class, "__call__", launch):
        yield


class _Threads:
    """The threads of one launch: notes their accesses and raises their errors."""

    def __init__(self, recorded: Recording, kernel: Any) -> None:
        self.recorded = recorded
        self.kernel = kernel
        self.errors: list[OutOfBoundsError] = []

    def watch(self, name: str, value: Any) -> Any:
        """Return an argument of the kernel; for an array, one that notes its use."""
        array = getattr(value, "_ary", value)
        if not isinstance(array, np.ndarray) or array.ndim == 0:
            return value
        known = self.recorded.add_argument(name, array)
        return _Watched(self, known, array, np.arange(array.size).reshape(array.shape))

    def note(self, kind: Kind, known: KnownArray, positions: Any) -> None:
        """Record the use of elements, by their numbers in the whole array."""
        axes = np.unravel_index(np.ravel(positions), known.shape)
        indices = [tuple(index) for index in np.transpose(axes).tolist()]
        self.recorded.note(self.name(), kind, known.name, indices)

    def fail(self, kind: Kind, known: KnownArray, index: tuple[Any, ...], shape: tuple[int, ...]) -> None:
        """Raise OutOfBoundsError for an index of the array, or of a part of it with another shape."""
        array = known.name if shape == known.shape else f"a part of {known.name}"
        element = f"{array}[{', '.join(map(str, index))}]"
        self.errors.append(OutOfBoundsError(f"{self.name()} {kind} {element}, which has {size_of(shape)}"))
        raise self.errors[-1]

    def name(self) -> str:
        """Name the thread that runs, by as many axes as the launch has."""
        thread: Any = threading.current_thread()
        block = _axes(thread.blockIdx, self.kernel.grid_dim)
        return f"block {block}, thread {_axes(thread.threadIdx, self.kernel.block_dim)}"


class _Watched:
    """An array, or a part of one, within a kernel: it notes what is read and written."""

    def __init__(
        self, threads: _Threads, known: KnownArray, array: np.ndarray, positions: np.ndarray
    ) -> None:
        self._threads, self._known = threads, known
        self._array, self._positions = array, positions

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # such as __array_interface__, by which NumPy would read unseen
            raise AttributeError(name)
        return getattr(self._array, name)

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, index: Any) -> Any:
        self._check("read", index)
        part, positions = self._array[index], self._positions[index]
        if isinstance(part, np.ndarray) and part.ndim:
            return _Watched(self._threads, self._known, part, positions)
        self._threads.note("read", self._known, positions)
        return part

    def __setitem__(self, index: Any, value: Any) -> None:
        self._check("wrote", index)
        self._array[index] = np.asarray(value) if isinstance(value, _Watched) else value
        self._threads.note("wrote", self._known, self._positions[index])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        self._threads.note("read", self._known, self._positions)
        return np.array(self._array, dtype=dtype)

    def _check(self, kind: Kind, index: Any) -> None:
        """Fail for an integer outside of its axis, and for one below 0, which NumPy would wrap."""
        indices = index if isinstance(index, tuple) else (index,)
        shape = self._array.shape
        if Ellipsis in indices or None in indices:
            return
        if len(indices) > len(shape) or any(
            isinstance(entry, int | np.integer) and not 0 <= entry < extent
            for entry, extent in zip(indices, shape, strict=False)
        ):
            self._threads.fail(kind, self._known, indices, shape)


def _axes(index: Any, extent: Sequence[int]) -> str:
    """Return (x, y), or x alone: without the last axes of extent 1."""
    axes = [index.x, index.y, index.z]
    while len(axes) > 1 and extent[len(axes) - 1] == 1:
        axes.pop()
    return f"({', '.join(map(str, axes))})" if len(axes) > 1 else str(axes[0])
