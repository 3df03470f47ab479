"""12. The block copy kernel: copy many blocks in one launch, with Numba CUDA

README.md explains it. Write each body that raises NotImplementedError; the rest is given.
Grade it: pytest lessons/12_block_copy_kernel    A hint: minipaged lessons hint 12
"""

from __future__ import annotations

from typing import Any

from numba import cuda

_THREADS = 256


def launch_copy_blocks(source_words: Any, destination_words: Any, pairs: Any, stream: Any = 0) -> None:
    """Launch `_copy_kernel` for all pairs, unchecked.

    Both pools: [num_blocks, words], words of one width and as many in each block; they may be the same array.
    pairs: int64 [n, 2], with n > 0. Arrays that Numba takes: device arrays, or NumPy arrays in its simulator
    (NUMBA_ENABLE_CUDASIM=1). The grid is [n, parts], a few words a thread: parts grows with the words, from 1
    to 65535, the most that a grid's second axis may have. A thread block has at most `_THREADS` threads, and
    no more than there are words. `stream` goes into the launch.
    """
    raise NotImplementedError


@cuda.jit
def _copy_kernel(source_words, destination_words, pairs):  # type: ignore[no-untyped-def]
    """Copy block pairs[x, 0] of the source pool onto block pairs[x, 1] of the other; x is cuda.blockIdx.x.

    The grid is [n, parts]: `cuda.gridDim.y` thread blocks of `cuda.blockDim.x` threads share one pair. In one
    row they are T threads; thread t of that row copies the words t, t + T, t + 2T and so on. T may be smaller
    or larger than the number of words. Both pools: [num_blocks, words]; pairs: int64 [n, 2].
    """
    raise NotImplementedError
