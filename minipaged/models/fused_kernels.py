"""Root mean square norm and rotary embedding, each in one pass of compiled code.

torch takes six to ten passes for each, and a pass over a few tokens takes longer to start than to run.
Results are rounded where torch rounds them. So only the sum in a norm, added up in another order, can change
a last bit.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from torch import Tensor

from ..kernels._cpu_arguments import as_numbers
from ..kernels._llvm import number_at
from ..kernels._numba import entry, fast, unallocating

WORD = ir.IntType(32)


def rms_norm(rows: Tensor, weight: np.ndarray, epsilon: float) -> Tensor:
    """weight * (row / sqrt(mean(row^2) + epsilon)) for each row of [..., n]; the mean is taken in float32.

    rows: float32, float64 or bfloat16. weight: n numbers of that dtype, as `as_numbers` gives them.
    """
    rows = rows.contiguous()
    out = torch.empty_like(rows)
    _rms_norm(as_numbers(out.view(-1)), as_numbers(rows.view(-1)), weight, np.float32(epsilon))
    return out


def rotate(heads: Tensor, num_rotated: int, cos: Tensor, sin: Tensor) -> None:
    """Rotary embedding of the first heads of each token, in place (Su et al., 2021).

    heads: [T, heads, head_dim], contiguous. cos, sin: [T, head_dim], in the heads' dtype. Element i of a
    head's first half and element i of its second half are a point, which is turned by the token's angle i.
    """
    angles = (as_numbers(values.contiguous().view(-1)) for values in (cos, sin))
    _rotate(as_numbers(heads.view(-1)), *angles, (heads.shape[1], num_rotated, heads.shape[2]))


@intrinsic
def rounded(typing_context: Any, x: Any, array: Any) -> Any:
    """x as the array's elements can hold it. In an array of uint16 these are bfloat16; ties go to even."""

    def codegen(context, builder, signature, arguments):
        number = arguments[0]
        if signature.args[1].dtype != types.uint16:
            return context.cast(builder, number, x, signature.return_type)
        bits = builder.bitcast(number, WORD)
        is_odd = builder.and_(builder.lshr(bits, WORD(16)), WORD(1))
        up = builder.add(bits, builder.add(WORD(0x7FFF), is_odd))
        nearest = builder.bitcast(builder.and_(up, WORD(0xFFFF0000)), number.type)
        return builder.select(builder.fcmp_unordered("uno", number, number), number, nearest)

    return (x if array.dtype == types.uint16 else array.dtype)(x, array), codegen


@intrinsic
def stored(typing_context: Any, x: Any, array: Any) -> Any:
    """A number that is `rounded`, in the array's own type."""

    def codegen(context, builder, signature, arguments):
        if signature.return_type != types.uint16:
            return arguments[0]
        return builder.trunc(builder.lshr(builder.bitcast(arguments[0], WORD), WORD(16)), ir.IntType(16))

    return array.dtype(x, array), codegen


@fast
def _sum_of_squares(row: Any) -> Any:
    total = np.float32(0)
    for i in range(row.size):
        x = np.float32(number_at(row, i))
        total += x * x
    return total


@unallocating
def _scale_row(out: Any, row: Any, weight: Any, factor: Any) -> None:
    for i in range(out.size):
        normed = rounded(np.float32(number_at(row, i)) * factor, out)
        out[i] = stored(rounded(normed * number_at(weight, i), out), out)


@entry
def _rms_norm(out: Any, rows: Any, weight: Any, epsilon: Any) -> None:
    n = weight.size
    for start in range(0, rows.size, n):
        row = rows[start : start + n]
        mean = _sum_of_squares(row) / np.float32(n)
        _scale_row(out[start : start + n], row, weight, np.float32(1) / np.float32(math.sqrt(mean + epsilon)))


@unallocating
def _turn(xs: Any, ys: Any, cos: Any, sin: Any) -> None:
    half = xs.size
    for i in range(half):
        x, y = number_at(xs, i), number_at(ys, i)
        along, across = rounded(x * number_at(cos, i), xs), rounded(y * number_at(sin, i), xs)
        xs[i] = stored(rounded(along - across, xs), xs)
        along, across = rounded(y * number_at(cos, half + i), xs), rounded(x * number_at(sin, half + i), xs)
        ys[i] = stored(rounded(along + across, xs), xs)


@entry
def _rotate(heads: Any, cos: Any, sin: Any, sizes: Any) -> None:
    num_heads, num_rotated, head_dim = sizes
    half = head_dim // 2
    for token in range(cos.size // head_dim):
        c, s = cos[token * head_dim : (token + 1) * head_dim], sin[token * head_dim : (token + 1) * head_dim]
        for head in range(num_rotated):
            at = (token * num_heads + head) * head_dim
            _turn(heads[at : at + half], heads[at + half : at + head_dim], c, s)
