"""Numba's CUDA simulator, watched: a kernel gets arrays that tell what each of its threads does with them.

`recording` in memory_map.py puts this into effect. Page: docs/lessons.md.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from .memory_accesses import Kind, Known, OutOfBoundsError, Recording, replaced, require, size_of


def simulates_numba() -> bool:
    """Whether `numba.cuda` is its simulator."""
    try:
        from numba import config
    except ImportError:
        return False
    return bool(config.ENABLE_CUDASIM)


@contextmanager
def watched_numba(recorded: Recording) -> Iterator[None]:
    """Let `recorded` know what simulated kernels do."""
    from numba.cuda.simulator import kernel as simulator

    kernel_class: Any = getattr(simulator, "FakeCUDAKernel", None)
    require(kernel_class, "__call__")
    run = kernel_class.__call__

    def launch(self: Any, *arguments: Any) -> Any:
        if _is_thread():  # a device function: what it is handed is watched already
            return run(self, *arguments)
        recorded.begin(self.fn.__name__)
        threads = _Threads(recorded, self)
        names = inspect.signature(self.fn).parameters
        try:
            return run(self, *map(threads.watch, names, arguments))
        except OutOfBoundsError as error:  # the simulator's copy, which says where once more
            raise threads.errors[0].with_traceback(error.__traceback__) from None

    with replaced(kernel_class, __call__=launch):
        yield


class _Threads:
    """What the threads of one launch do is told here."""

    def __init__(self, recorded: Recording, kernel: Any) -> None:
        self.recorded = recorded
        self.kernel = kernel
        self.errors: list[OutOfBoundsError] = []

    def watch(self, name: str, value: Any) -> Any:
        """An argument of the kernel; in the place of an array one that tells of its use."""
        array = getattr(value, "_ary", value)
        if not isinstance(array, np.ndarray) or array.ndim == 0:
            return value
        known = self.recorded.know(name, array)
        return _Watched(self, known, array, np.arange(array.size).reshape(array.shape))

    def note(self, kind: Kind, known: Known, positions: Any) -> None:
        """Elements were used, by their numbers in the whole array."""
        axes = np.unravel_index(np.ravel(positions), known.shape)
        indices = [tuple(index) for index in np.transpose(axes).tolist()]
        self.recorded.note(self.name(), kind, known.name, indices)

    def fail(self, kind: Kind, known: Known, index: tuple[Any, ...], shape: tuple[int, ...]) -> None:
        """Raise OutOfBoundsError."""
        whole = shape == known.shape
        place = f"{known.name if whole else f'a part of {known.name}'}[{', '.join(map(str, index))}]"
        self.errors.append(OutOfBoundsError(f"{self.name()} {kind} {place}, which has {size_of(shape)}"))
        raise self.errors[-1]

    def name(self) -> str:
        """The thread that runs, by as many axes as the launch has."""
        thread: Any = threading.current_thread()
        block = _axes(thread.blockIdx, self.kernel.grid_dim)
        return f"block {block}, thread {_axes(thread.threadIdx, self.kernel.block_dim)}"


class _Watched:
    """An array, or a part of one, within a kernel: it tells of what is read and written."""

    def __init__(self, threads: _Threads, known: Known, array: np.ndarray, positions: np.ndarray) -> None:
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
        """An integer outside of its axis is an error, and so is one below 0, which NumPy would wrap."""
        places = index if isinstance(index, tuple) else (index,)
        shape = self._array.shape
        if Ellipsis in places or None in places:
            return
        if len(places) > len(shape) or any(
            isinstance(place, int | np.integer) and not 0 <= place < extent
            for place, extent in zip(places, shape, strict=False)
        ):
            self._threads.fail(kind, self._known, places, shape)


def _is_thread() -> bool:
    return hasattr(threading.current_thread(), "blockIdx")


def _axes(place: Any, extent: Sequence[int]) -> str:
    """(x, y), or x alone: without the last axes of extent 1."""
    axes = [place.x, place.y, place.z]
    while len(axes) > 1 and extent[len(axes) - 1] == 1:
        axes.pop()
    return f"({', '.join(map(str, axes))})" if len(axes) > 1 else str(axes[0])
