"""All splits were written.

Words: were never written
"""

import torch

from minipaged.kernels._checks import check_inputs, check_launch
from minipaged.kernels._triton import tl, triton
from minipaged.kernels.attention import (
    SPLIT_LENGTH,
    _attend,
    _decode_kernel,
    _effective_window,
    _group_heads,
    _tiles,
)

__all__ = ["_attend", "_decode_kernel", "_group_heads", "_merge_kernel", "decode_attention"]


def decode_attention(
    queries, key_cache, value_cache, block_tables, context_lengths, *, scale, window=None, softcap=None
):
    check_inputs(queries, key_cache, value_cache, block_tables, context_lengths, window, softcap)
    window = _effective_window(window, block_tables, key_cache)
    check_launch(_decode_kernel, queries, key_cache, block_tables, context_lengths)
    batch, num_heads, head_dim = queries.shape
    if batch != block_tables.shape[0]:
        raise ValueError(f"queries: {batch} rows, but block_tables has {block_tables.shape[0]}")
    _, block_size, num_kv_heads, _ = key_cache.shape
    num_splits = max(1, triton.cdiv(block_tables.shape[1] * block_size, SPLIT_LENGTH))
    wide = torch.float64 if queries.dtype == torch.float64 else torch.float32
    output = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
    partial = torch.empty((batch, num_heads, num_splits, head_dim), dtype=wide, device=queries.device)
    statistics = torch.empty((batch, num_heads, num_splits, 2), dtype=wide, device=queries.device)
    if batch == 0:
        return output
    context_lengths = context_lengths.contiguous()
    group = num_heads // num_kv_heads
    dim_tile, key_tile, num_warps = _tiles(queries.dtype, head_dim)
    row_tile = min(key_tile, max(16, triton.next_power_of_2(group)))
    with torch.cuda.device_of(queries):
        _decode_kernel[(batch, num_kv_heads * triton.cdiv(group, row_tile), num_splits)](
            queries, key_cache, value_cache, block_tables, context_lengths, partial, statistics,
            num_heads, num_splits,
            *queries.stride()[:2], *key_cache.stride()[:3], *value_cache.stride()[:3], block_tables.stride(0),
            SCALE=float(scale), WINDOW=window, SOFTCAP=None if softcap is None else float(softcap),
            BLOCK_SIZE=block_size, SPLIT_LENGTH=SPLIT_LENGTH, GROUP=group, HEAD_DIM=head_dim,
            ROW_TILE=row_tile, KEY_TILE=key_tile, DIM_TILE=dim_tile, num_warps=num_warps,
        )  # fmt: skip
        _merge_kernel[(batch, num_heads)](
            partial, statistics, context_lengths, output,
            num_heads, num_splits,
            *output.stride()[:2],
            WINDOW=window, SPLIT_LENGTH=SPLIT_LENGTH, HEAD_DIM=head_dim, SPLIT_TILE=8, DIM_TILE=dim_tile,
        )  # fmt: skip
    return output


@triton.jit
def _merge_kernel(
    partial_ptr, statistics_ptr, length_ptr, output_ptr,
    num_heads, num_splits,
    output_row_stride, output_head_stride,
    WINDOW: tl.constexpr, SPLIT_LENGTH: tl.constexpr, HEAD_DIM: tl.constexpr,
    SPLIT_TILE: tl.constexpr, DIM_TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    first_split = 0
    last_split = num_splits
    dims = tl.arange(0, DIM_TILE)
    wide: tl.constexpr = partial_ptr.dtype.element_ty
    best = tl.full([1], float("-inf"), wide)
    total = tl.zeros([1], wide)
    output = tl.zeros([DIM_TILE], wide)
    for start in range(first_split, last_split, SPLIT_TILE):
        splits = start + tl.arange(0, SPLIT_TILE)
        inside = splits < last_split
        at = (row * num_heads + head) * num_splits + splits
        split_best = tl.load(statistics_ptr + at * 2, mask=inside, other=float("-inf"))
        split_total = tl.load(statistics_ptr + at * 2 + 1, mask=inside, other=0.0)
        loaded = inside[:, None] & (dims < HEAD_DIM)[None, :]
        partial = tl.load(partial_ptr + at[:, None] * HEAD_DIM + dims[None, :], mask=loaded, other=0.0)
        new_best = tl.maximum(best, tl.max(split_best, 0))
        weights = tl.exp(split_best - new_best)
        rescale = tl.exp(best - new_best)
        total = total * rescale + tl.sum(split_total * weights, 0)
        output = output * rescale + tl.sum(partial * weights[:, None], 0)
        best = new_best
    output = output / tl.where(total == 0, 1.0, total)  # an empty row: 0 / 1
    at = row * output_row_stride + head * output_head_stride
    tl.store(output_ptr + at + dims, output.to(output_ptr.dtype.element_ty), mask=dims < HEAD_DIM)
