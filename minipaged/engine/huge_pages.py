"""CPU memory in huge pages, for what every step reads whole: the weights and the pool.

A step reads hundreds of megabytes once. In pages of 4 KiB each page costs a walk through the machine's own
page tables; in pages of 2 MiB hardly any does. torch doesn't ask the kernel for them, NumPy does.
"""

from __future__ import annotations

import math

import numpy as np
import torch

CACHE_LINE = 64  # bytes


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
    places, end = [], 0
    for weight in weights:
        places.append(end)
        end += -(-weight.nbytes // CACHE_LINE) * CACHE_LINE
    memory = empty((end,), torch.uint8)
    for weight, place in zip(weights, places, strict=True):
        home = memory[place : place + weight.nbytes].view(weight.dtype).view(weight.shape)
        weight.data = home.copy_(weight)
