"""The small operations of a decoder layer, each one pass of compiled code: norm, gate, rotary embedding.

torch takes five to ten passes for each, and a pass over a few tokens costs more to start than to run. The
results are rounded where torch rounds, so only a sum in another order or another exp can change a last bit.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numba import types
from numba.extending import overload
from torch import Tensor

from ..kernels._cpu_arguments import as_numbers
from ..kernels._llvm import number_at
from ..kernels._numba import EXACT, entry, fast
from ..kernels._vector import exp


def rms_norm(rows: Tensor, weight: np.ndarray, epsilon: float) -> Tensor:
    """weight * (row / sqrt(mean(row^2) + epsilon)) for each row of [..., n]; the mean is taken in float32."""
    rows = rows.contiguous()
    out = torch.empty_like(rows)
    _rms_norm(as_numbers(out.view(-1)), as_numbers(rows.view(-1)), weight, np.float32(epsilon))
    return out


def silu_gate(gates_and_ups: Tensor) -> Tensor:
    """silu(gate) * up, where a row [..., 2n] holds n gates and then n ups; silu(x) = x / (1 + exp(-x))."""
    *sizes, both = gates_and_ups.shape
    out = torch.empty((*sizes, both // 2), dtype=gates_and_ups.dtype)
    _silu_gate(as_numbers(out.view(-1)), as_numbers(gates_and_ups.view(-1)), both // 2)
    return out


def rotate(heads: Tensor, num_rotated: int, cos: Tensor, sin: Tensor) -> None:
    """Rotary embedding of the first heads of each token, in place (Su et al., 2021).

    heads: [T, heads, head_dim], contiguous. cos, sin: [T, head_dim]. Element i of a head's first half and
    element i of its second half are a point, which is turned by the token's angle i.
    """
    arrays = as_numbers(heads), as_numbers(cos.contiguous().view(-1)), as_numbers(sin.contiguous().view(-1))
    _rotate(*arrays, num_rotated)


def narrow(x: Any, array: Any) -> Any:
    """x in the type of the array's elements. In an array of uint16 these are bfloat16, ties go to even."""
    return array.dtype.type(x)


@overload(narrow, jit_options=EXACT)
def _narrow(x, array):
    if array.dtype == types.uint16:
        return _as_bfloat16
    return lambda x, array: array.dtype.type(x)


def _as_bfloat16(x, array):
    bits = np.float32(x).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.uint16(rounded) if x == x else np.uint16(0x7FC0)


@fast
def _sum_of_squares(rows: Any, start: int, n: int) -> Any:
    total = np.float32(0)
    for i in range(start, start + n):
        x = np.float32(number_at(rows, i))
        total += x * x
    return total


@entry
def _rms_norm(out: Any, rows: Any, weight: Any, epsilon: Any) -> None:
    n = weight.size
    for start in range(0, rows.size, n):
        mean = _sum_of_squares(rows, start, n) / np.float32(n)
        factor = np.float32(1) / np.float32(math.sqrt(mean + epsilon))
        for i in range(n):
            out[start + i] = narrow(np.float32(number_at(rows, start + i)) * factor, out)
        for i in range(n):
            out[start + i] = narrow(number_at(out, start + i) * number_at(weight, i), out)


@entry
def _silu_gate(out: Any, both: Any, n: int) -> None:
    for row in range(out.size // n):
        gates, ups, start = 2 * row * n, (2 * row + 1) * n, row * n
        for i in range(n):
            x = number_at(both, gates + i)
            one, decay = type(x)(1), exp(-abs(x))
            out[start + i] = narrow(x * ((one if x >= 0 else decay) / (one + decay)), out)
        for i in range(n):
            out[start + i] = narrow(number_at(out, start + i) * number_at(both, ups + i), out)
