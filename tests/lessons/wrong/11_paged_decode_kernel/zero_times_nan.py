"""A masked score of -inf gives the weight 0, so the values may be loaded unmasked.

Words: 0 x NaN is NaN
"""

import torch

from minipaged.kernels._checks import check_inputs, check_launch
from minipaged.kernels._triton import tl, triton
from minipaged.kernels.attention import SPLIT_LENGTH, _effective_window, _group_heads, _merge_kernel, _tiles


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
def _attend(
    queries, query_positions, first, last,
    key_ptr, value_ptr, table_ptr,
    key_block_stride, key_slot_stride,
    value_block_stride, value_slot_stride,
    SCALE: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, KEY_TILE: tl.constexpr, DIM_TILE: tl.constexpr,
):  # fmt: skip
    wide: tl.constexpr = tl.float64 if queries.dtype == tl.float64 else tl.float32
    best = tl.full([queries.shape[0]], float("-inf"), wide)
    total = tl.zeros([queries.shape[0]], wide)
    output = tl.zeros([queries.shape[0], DIM_TILE], wide)
    dims = tl.arange(0, DIM_TILE)
    for start in range(first // KEY_TILE * KEY_TILE, last, KEY_TILE):
        positions = start + tl.arange(0, KEY_TILE)
        inside = (positions >= first) & (positions < last)
        blocks = tl.load(table_ptr + positions // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
        offsets = (positions % BLOCK_SIZE).to(tl.int64)
        loaded = inside[:, None] & (dims < HEAD_DIM)[None, :]
        key_at = blocks * key_block_stride + offsets * key_slot_stride
        keys = tl.load(key_ptr + key_at[:, None] + dims[None, :], mask=loaded, other=0.0)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * SCALE
        scores = tl.where(inside[None, :], scores, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, 1))
        shift = tl.where(new_best == float("-inf"), 0.0, new_best)
        weights = tl.exp(scores - shift[:, None])
        rescale = tl.exp(best - shift)
        value_at = blocks * value_block_stride + offsets * value_slot_stride
        values = tl.load(
            value_ptr + value_at[:, None] + dims[None, :], mask=dims[None, :] < HEAD_DIM, other=0.0
        )
        total = total * rescale + tl.sum(weights, 1)
        output = output * rescale[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        best = new_best
    return output, best, total


@triton.jit
def _decode_kernel(
    query_ptr, key_ptr, value_ptr, table_ptr, length_ptr, partial_ptr, statistics_ptr,
    num_heads, num_splits,
    query_row_stride, query_head_stride,
    key_block_stride, key_slot_stride, key_head_stride,
    value_block_stride, value_slot_stride, value_head_stride,
    table_row_stride,
    SCALE: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, SPLIT_LENGTH: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
    ROW_TILE: tl.constexpr, KEY_TILE: tl.constexpr, DIM_TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    kv_head, heads, is_member = _group_heads(tl.program_id(1), GROUP, ROW_TILE)
    split = tl.program_id(2)
    length = tl.load(length_ptr + row)
    first = split * SPLIT_LENGTH
    last = tl.minimum(first + SPLIT_LENGTH, length)
    if WINDOW is not None:
        first = tl.maximum(first, length - WINDOW)
    if first >= last:
        return
    dims = tl.arange(0, DIM_TILE)
    inside = is_member[:, None] & (dims < HEAD_DIM)[None, :]
    query_at = row * query_row_stride + heads * query_head_stride
    queries = tl.load(query_ptr + query_at[:, None] + dims[None, :], mask=inside, other=0.0)
    positions = tl.zeros([ROW_TILE], tl.int32) + (length - 1)
    output, best, total = _attend(
        queries, positions, first, last,
        key_ptr + kv_head * key_head_stride,
        value_ptr + kv_head * value_head_stride,
        table_ptr + row * table_row_stride,
        key_block_stride, key_slot_stride,
        value_block_stride, value_slot_stride,
        SCALE, WINDOW, SOFTCAP, BLOCK_SIZE, HEAD_DIM, KEY_TILE, DIM_TILE,
    )  # fmt: skip
    at = (row * num_heads + heads) * num_splits + split
    tl.store(partial_ptr + at[:, None] * HEAD_DIM + dims[None, :], output, mask=inside)
    tl.store(statistics_ptr + at * 2, best, mask=is_member)
    tl.store(statistics_ptr + at * 2 + 1, total, mask=is_member)
