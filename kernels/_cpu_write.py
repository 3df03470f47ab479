"""K or V of new tokens written to their slots by compiled code, for a step's many layers on a CPU.

`write_kv` in block_table.py does the same with NumPy, and checks its arguments each time; a test holds the two equal.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from ._cpu_arguments import as_numbers
from ._numba import entry


def write(cache: Any, tokens: Tensor, slots: np.ndarray) -> None:
    """Write `tokens` [T, num_kv_heads, head_dim] to the slots [T] of a layer's K or V, made by `as_cache`.

    The slots were checked before; -1 skips a token.
    """
    _write(cache, as_numbers(tokens.contiguous()), slots)


@entry
def _write(cache: Any, tokens: Any, slots: Any) -> None:
    numbers, block_stride, slot_stride, head_stride, block_size, num_heads = cache
    for token in range(slots.size):
        block, offset = slots[token] // block_size, slots[token] % block_size
        start = block * block_stride + offset * slot_stride
        for head in range(num_heads if slots[token] >= 0 else 0):
            for d in range(tokens.shape[2]):
                numbers[start + head * head_stride + d] = tokens[token, head, d]
