"""CPU memory in huge pages, for what every step reads whole: the weights and the pool.

A step reads hundreds of megabytes once. In pages of 4 KiB each page costs a walk through the machine's own
page tables; in pages of 2 MiB hardly any does. torch doesn't ask the kernel for them, NumPy does.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import sys

import numpy as np
import torch

CACHE_LINE = 64  # bytes
PIECE = 1 << 24  # bytes of a weight that are there twice while it is moved


def empty(size: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """An uninitialised CPU tensor that starts on a cache line, in huge pages where the system has them."""
    num_bytes = math.prod(size) * dtype.itemsize
    memory = np.empty(num_bytes + CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return torch.from_numpy(memory[start : start + num_bytes]).view(dtype).view(size)


@torch.no_grad()
def move_weights(model: torch.nn.Module) -> None:
    """Move a CPU model's parameters into huge pages, one after the other. Tied weights stay tied."""
    weights = list(model.parameters())  # a tied one comes once
    starts, end = [], 0
    for weight in weights:
        starts.append(end)
        end += -(-weight.nbytes // CACHE_LINE) * CACHE_LINE
    memory = empty((end,), torch.uint8)
    files = _mapped_files()
    for weight, start in zip(weights, starts, strict=True):
        home = memory[start : start + weight.nbytes].view(weight.dtype).view(weight.shape)
        _move(weight, home, files)
        weight.data = home


def _move(weight: torch.Tensor, home: torch.Tensor, files: list[range]) -> None:
    """Copy a weight to its new home in pieces, and drop each piece where it was."""
    rows, home_rows = torch.atleast_1d(weight), torch.atleast_1d(home)
    num_rows = max(1, PIECE * len(rows) // max(1, weight.nbytes))
    for source, destination in zip(rows.split(num_rows), home_rows.split(num_rows), strict=True):
        destination.copy_(source)
        if source.is_contiguous():
            _drop_pages(source, files)


def _mapped_files() -> list[range]:
    """The addresses of this process at which a file stands: a checkpoint's weights may be there."""
    if sys.platform != "linux":
        return []
    with open("/proc/self/maps") as lines:  # "7f00-7f80 rw-p 00000000 fe:00 160399 /path", 0 for no file
        fields = [line.split(maxsplit=5) for line in lines]
    return [range(*(int(end, 16) for end in field[0].split("-"))) for field in fields if field[4] != "0"]


def _drop_pages(values: torch.Tensor, files: list[range]) -> None:
    """Take the pages of a mapped file that hold nothing but `values` out of memory; the file still has them.

    safetensors maps a file as one piece, which goes away with the last of its weights. Until then the process
    would hold every weight twice.
    """
    pages = _whole_pages(values)
    if pages and any(pages.start in file and pages.stop <= file.stop for file in files):
        drop_pages(values)


def drop_pages(values: torch.Tensor) -> None:
    """Give back the memory of numbers that nobody reads again, though a neighbour keeps them allocated."""
    pages = _whole_pages(values)
    if sys.platform == "linux" and pages:
        ctypes.CDLL(None).madvise(
            ctypes.c_void_p(pages.start), ctypes.c_size_t(len(pages)), mmap.MADV_DONTNEED
        )


def _whole_pages(values: torch.Tensor) -> range:
    """The addresses of the pages that hold nothing else."""
    start = -(-values.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    return range(start, (values.data_ptr() + values.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE)
