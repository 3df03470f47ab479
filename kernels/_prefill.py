"""The kernel of `prefill_attention`: many queries of one sequence at a time, each at its own position.

Its programs go through the very loop of decode, `_attend` in kernels/attention.py, without splits: a prompt
has enough query rows to keep a GPU busy. Page: docs/concepts/prefill_decode.md.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ._checks import check_starts
from ._triton import tl, triton
from ._triton_arguments import Scoring, sizes_for, strides_for
from .attention import _attend


# Prefills come after the decodes of a step: their tables and lengths begin at any row.
@triton.jit(do_not_specialize_on_alignment=["table_ptr", "length_ptr"])
def _prefill_kernel(
    query_ptr, key_ptr, value_ptr, table_ptr, length_ptr, start_ptr, output_ptr, strides,
    SCORING: tl.constexpr, SIZES: tl.constexpr,
):  # fmt: skip
    """Attend from one tile of query rows; a program has a row for each query and each head of a group."""
    tile_start = tl.program_id(0) * SIZES.ROW_TILE
    kv_head, sequence = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    query_start = tl.load(start_ptr + sequence)
    query_length = tl.load(start_ptr + sequence + 1) - query_start
    if tile_start >= query_length * SIZES.GROUP:
        return
    # The heads of a group share their keys: a tile holds (query, head) pairs, the group's heads innermost.
    pairs = tile_start + tl.arange(0, SIZES.ROW_TILE)
    indices = pairs // SIZES.GROUP
    heads = kv_head * SIZES.GROUP + pairs % SIZES.GROUP
    tokens = (query_start + indices).to(tl.int64)
    dims = tl.arange(0, SIZES.DIM_TILE)
    inside = (indices < query_length)[:, None] & (dims < SIZES.HEAD_DIM)[None, :]
    query_at = tokens * strides.queries.token + heads * strides.queries.head
    queries = tl.load(query_ptr + query_at[:, None] + dims[None, :], mask=inside, other=0.0)
    length = tl.load(length_ptr + sequence)
    cached = length - query_length
    last = tl.minimum(length, cached + (tile_start + SIZES.ROW_TILE - 1) // SIZES.GROUP + 1)
    first = 0
    if SCORING.WINDOW is not None:
        first = tl.maximum(0, cached + tile_start // SIZES.GROUP - SCORING.WINDOW + 1)
    key_ptr += kv_head * strides.key_cache.head
    value_ptr += kv_head * strides.value_cache.head
    table_ptr += sequence * strides.tables.row
    output, _, total = _attend(
        queries, cached + indices, first, last, key_ptr, value_ptr, table_ptr, strides, SCORING, SIZES
    )
    output = output / tl.where(total == 0, 1.0, total)[:, None]  # no key seen: 0 / 1
    output_at = tokens * strides.output.token + heads * strides.output.head
    output_ptrs = output_ptr + output_at[:, None] + dims[None, :]
    tl.store(output_ptrs, output.to(output_ptr.dtype.element_ty), mask=inside)


def launch_prefill(
    queries: Tensor, key_cache: Tensor, value_cache: Tensor, rows: tuple[Tensor, Tensor, Tensor],
    scoring: Scoring, max_query_length: int | None,
) -> Tensor:  # fmt: skip
    """Launch the kernel for checked tensors; rows: block_tables, context_lengths and query_starts."""
    block_tables, context_lengths, query_starts = rows
    max_query_length = check_starts(query_starts, len(block_tables), queries, max_query_length)
    output = torch.zeros(queries.shape, dtype=queries.dtype, device=queries.device)
    sizes, num_warps = sizes_for(queries, key_cache)
    sizes = sizes._replace(ROW_TILE=sizes.KEY_TILE)
    row_tiles = triton.cdiv(max_query_length * sizes.GROUP, sizes.ROW_TILE)
    strides = strides_for(queries, key_cache, value_cache, block_tables, output)
    if row_tiles and len(block_tables):
        with torch.cuda.device_of(queries):
            _prefill_kernel[(row_tiles, key_cache.shape[2], len(block_tables))](
                queries, key_cache, value_cache, block_tables, context_lengths.contiguous(),
                query_starts.contiguous(), output, strides, SCORING=scoring, SIZES=sizes, num_warps=num_warps,
            )  # fmt: skip
    return output
