"""Triton where it is installed, and a stand-in elsewhere: its wheels are for Linux only.

The files that hold Triton kernels also hold the CPU's way of doing the same, which needs no Triton. With the
stand-in they can be imported anywhere, and only a launch says what is missing.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

try:
    import triton
    import triton.language as tl

    HAS_TRITON = True
except ImportError:
    HAS_TRITON = False

    class _MissingKernel:
        """What `triton.jit` makes of a kernel where there is no Triton."""

        def __getitem__(self, grid: Any) -> Any:
            raise RuntimeError("triton is not installed: its wheels are for Linux only, this kernel needs it")

    class _MissingTriton:
        JITFunction = _MissingKernel

        @staticmethod
        def jit(function: Any = None, **options: Any) -> Any:
            """Take the place of a kernel; with options, of the decorator."""
            return _MissingKernel() if function else lambda decorated: _MissingKernel()

        @staticmethod
        def cdiv(x: int, y: int) -> int:
            """x / y, rounded up."""
            return -(-x // y)

        @staticmethod
        def next_power_of_2(n: int) -> int:
            """The smallest power of two that is not below n."""
            return 1 << (n - 1).bit_length()

    triton = _MissingTriton()
    tl = None

__all__ = ["HAS_TRITON", "require_launch", "tl", "triton"]


def require_launch(kernel: object, tensor: Tensor, name: str) -> None:
    """Raise RuntimeError for a CPU tensor `name` unless `kernel`, and so all of them, is interpreted."""
    if tensor.is_cuda or not isinstance(kernel, triton.JITFunction):
        return
    raise RuntimeError(
        f"{name} is a CPU tensor: Triton runs those in its interpreter only, "
        "set TRITON_INTERPRET=1 before the first import of triton (transformers imports it too)"
    )


@triton.jit
def _tanh(x):
    """The hyperbolic tangent: Triton has it for GPUs only, in a library that its interpreter lacks."""
    # Near 0 a Pade fraction: there 1 - exp(-2x) would lose the digits of x.
    square = x * x
    near = x * (135135 + square * (17325 + square * (378 + square)))
    near = near / (135135 + square * (62370 + square * (3150 + square * 28)))
    decay = tl.exp(-2 * tl.abs(x))
    far = (1 - decay) / (1 + decay)
    return tl.where(tl.abs(x) < 0.5, near, tl.where(x < 0, -far, far))
