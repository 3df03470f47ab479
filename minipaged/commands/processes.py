"""Several simulations at a time, each in a process of its own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

Map = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]


@contextmanager
def processes(count: int) -> Iterator[Map]:
    """A `map` over `count` processes, with one thread each; with 1, the plain one."""
    if count == 1:
        yield map
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, context, torch.set_num_threads, (1,)) as pool:
        yield pool.map
