"""Several simulations at a time, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

Map = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]


@contextmanager
def processes(count: int, prepare: Callable[[], None] | None = None) -> Iterator[Map]:
    """Yield a `map` over `count` processes with one thread per process, or the plain `map` for 1.

    The end of the block, or an interrupt, ends the processes.
    prepare: the first call in each process, if its function can't be imported without it.
    """
    if count == 1:
        yield map
        return
    with multiprocessing.get_context("spawn").Pool(count, _begin, (prepare,)) as pool:
        yield partial(pool.map, chunksize=1)


def usable_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _begin(prepare: Callable[[], None] | None) -> None:
    import torch  # only where a process needs it: the help of a command must not wait

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to handle
    torch.set_num_threads(1)
    if prepare is not None:
        prepare()
