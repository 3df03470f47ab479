"""Triton where it is installed, and a stand-in elsewhere: its wheels are for Linux only.

The files that hold Triton kernels also hold the CPU's way of doing the same, which needs no Triton. With the
stand-in they can be imported anywhere, and only a launch says what is missing.
"""

from __future__ import annotations

from typing import Any

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
        def jit(function: Any) -> _MissingKernel:
            """Take the place of a kernel."""
            return _MissingKernel()

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

__all__ = ["HAS_TRITON", "tl", "triton"]
