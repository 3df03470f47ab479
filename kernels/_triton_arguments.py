"""What the Triton kernels take besides tensors: strides, how scores are made, and sizes.

Each travels as one tuple with named fields. A kernel is compiled anew for other `Scoring`, `Sizes` and
`CacheShape`; strides are numbers that it reads at run time.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from ._checks import check_options
from ._triton import triton


class TableStrides(NamedTuple):
    """Entries from one row of the block tables to the next, and from one column to the next."""

    row: int
    column: int


class TokenStrides(NamedTuple):
    """Elements from one token, head and dimension to the next, of a tensor [tokens, heads, head_dim]."""

    token: int
    head: int
    dim: int


class CacheStrides(NamedTuple):
    """Elements from one block, slot, head and dimension to the next, of a paged cache."""

    block: int
    slot: int
    head: int
    dim: int


class WriteStrides(NamedTuple):
    """The strides of the four tensors of `write_kv`; no field may be `values`, which Triton's tuples have."""

    key: TokenStrides
    value: TokenStrides
    key_cache: CacheStrides
    value_cache: CacheStrides


class CacheShape(NamedTuple):
    """What one block of a cache holds: BLOCK_SIZE slots of NUM_KV_HEADS heads of HEAD_DIM numbers."""

    BLOCK_SIZE: int
    NUM_KV_HEADS: int
    HEAD_DIM: int


class AttentionStrides(NamedTuple):
    """The strides of the tensors that attention reads, and of its output."""

    queries: TokenStrides
    key_cache: CacheStrides
    value_cache: CacheStrides
    tables: TableStrides
    output: TokenStrides


class Scoring(NamedTuple):
    """How scores are made, and which keys a query sees; None for no window or no soft cap."""

    SCALE: float
    WINDOW: int | None
    SOFTCAP: float | None


class Sizes(NamedTuple):
    """Sizes of the model and of the tiles that a program works on; the tiles are powers of two."""

    BLOCK_SIZE: int  # slots in a block
    SPLIT_LENGTH: int  # tokens of context that one decode program reads; 0 in prefill
    NUM_HEADS: int  # query heads
    GROUP: int  # query heads in a row that share one KV head
    HEAD_DIM: int
    ROW_TILE: int  # query rows that a program attends from; tl.dot takes tiles of 16 or more
    KEY_TILE: int  # keys that it takes at a time
    DIM_TILE: int  # lanes for the HEAD_DIM elements of a head, some of them unused


def write_strides_for(keys: Tensor, values: Tensor, key_cache: Tensor, value_cache: Tensor) -> WriteStrides:
    """The strides of the tensors of one `write_kv`."""
    tokens = TokenStrides(*keys.stride()), TokenStrides(*values.stride())
    return WriteStrides(*tokens, CacheStrides(*key_cache.stride()), CacheStrides(*value_cache.stride()))


def scoring_for(scale: float, window: int | None, softcap: float | None) -> Scoring:
    """Check the options. A window that doesn't fit a kernel's 32 bits hides nothing and is left out.

    The width of the tables, which changes from step to step, decides nothing: a kernel is compiled anew for
    another `Scoring`.
    """
    check_options(window, softcap)
    if window is not None and window >= 2**31:
        window = None
    return Scoring(float(scale), window, None if softcap is None else float(softcap))


def sizes_for(queries: Tensor, key_cache: Tensor, split_length: int = 0) -> tuple[Sizes, int]:
    """The sizes of a decode launch, and its warps: what spills no registers. Blocks may be of any size."""
    _, num_heads, head_dim = queries.shape
    group = num_heads // key_cache.shape[2]
    dim_tile = max(16, triton.next_power_of_2(head_dim))
    row_bytes = dim_tile * queries.dtype.itemsize
    key_tile = max(16, min(64 if queries.dtype.itemsize == 2 else 32, 16384 // row_bytes))
    row_tile = min(key_tile, max(16, triton.next_power_of_2(group)))
    block_size = key_cache.shape[1]
    sizes = Sizes(block_size, split_length, num_heads, group, head_dim, row_tile, key_tile, dim_tile)
    return sizes, 4 if row_bytes <= 512 else 8


def strides_for(
    queries: Tensor, key_cache: Tensor, value_cache: Tensor, block_tables: Tensor, output: Tensor
) -> AttentionStrides:
    """The strides of the tensors of one attention call."""
    return AttentionStrides(
        TokenStrides(*queries.stride()),
        CacheStrides(*key_cache.stride()),
        CacheStrides(*value_cache.stride()),
        TableStrides(*block_tables.stride()),
        TokenStrides(*output.stride()),
    )
