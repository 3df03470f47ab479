"""Attention over blocks with online softmax, in Triton: decode with split context, and prefill.

Every key position looks up its own physical block, so a tile of keys and a block need not be of one size.
Twin: reference/attention.py; kernels/attention_cpu.py is the same for the CPU.
Lesson: lessons/11_paged_decode_kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ._checks import check_inputs, check_launch, check_starts
from ._triton import tl, triton

# Tokens of context that one decode program reads. A constant, so that the way a row is split depends on its
# own length only, and its result never on the other rows of the batch.
SPLIT_LENGTH = 256


def decode_attention(
    queries: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    context_lengths: Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Attention of one new token per sequence over its paged context (paper section 4.1, equation 4).

    Args:
        queries: [batch, num_heads, head_dim]; query head h reads KV head h // (num_heads // num_kv_heads).
        key_cache, value_cache: [num_blocks, block_size, num_kv_heads, head_dim], may be strided views.
        block_tables: int32 [batch, max_blocks], physical block ids; entries past the context are never read.
        context_lengths: int32 [batch], tokens in the cache, the query's own among them; 0 gives zeros.
        scale: factor on the scores, usually head_dim ** -0.5.
        window: number of last tokens a query sees, itself among them; None for all.
        softcap: c in c * tanh(score / c), applied after the scale; None for none.

    Returns:
        [batch, num_heads, head_dim] in the dtype of `queries`; sums run in float32 (in float64 for float64).

    Raises:
        TypeError: dtypes differ or are not supported.
        ValueError: a shape, stride, device or option is wrong; on the CPU also a length or a block id.
        RuntimeError: CPU tensors where Triton is not interpreted.
    """
    check_inputs(queries, key_cache, value_cache, block_tables, context_lengths, window, softcap)
    window = _effective_window(window, block_tables, key_cache)
    check_launch(_decode_kernel, queries, key_cache, block_tables, context_lengths)
    batch, num_heads, head_dim = queries.shape
    if batch != block_tables.shape[0]:
        raise ValueError(f"queries: {batch} rows, but block_tables has {block_tables.shape[0]}")
    _, block_size, num_kv_heads, _ = key_cache.shape
    # The table's capacity and not the longest context: reading that would make the host wait for the device.
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


def prefill_attention(
    queries: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    context_lengths: Tensor,
    query_starts: Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    max_query_length: int | None = None,
) -> Tensor:
    """Causal attention of a ragged batch of last tokens over their paged contexts (paper section 4.3).

    Row i of sequence s is the token at position context_lengths[s] - query_length + i, so that a chunk of a
    prompt sees the chunks before it. The arguments that are not named below, and what is raised, are those of
    `decode_attention`.

    Args:
        queries: [total_tokens, num_heads, head_dim], the sequences' rows one after the other.
        query_starts: int32 [batch + 1], first row of each sequence, and the total; lengths of 0 are allowed.
        max_query_length: no sequence has more rows; None takes total_tokens. A host number, for the grid.

    Returns:
        [total_tokens, num_heads, head_dim] in the dtype of `queries`; zeros for rows of no sequence.
    """
    check_inputs(queries, key_cache, value_cache, block_tables, context_lengths, window, softcap)
    window = _effective_window(window, block_tables, key_cache)
    check_launch(_prefill_kernel, queries, key_cache, block_tables, context_lengths)
    total_tokens, num_heads, head_dim = queries.shape
    batch = block_tables.shape[0]
    if max_query_length is None:
        max_query_length = total_tokens
    check_starts(query_starts, batch, total_tokens, max_query_length, queries.device)
    _, block_size, num_kv_heads, _ = key_cache.shape
    output = torch.zeros(queries.shape, dtype=queries.dtype, device=queries.device)
    group = num_heads // num_kv_heads
    dim_tile, key_tile, num_warps = _tiles(queries.dtype, head_dim)
    row_tiles = triton.cdiv(max_query_length * group, key_tile)
    if row_tiles == 0 or batch == 0:
        return output
    context_lengths, query_starts = context_lengths.contiguous(), query_starts.contiguous()
    with torch.cuda.device_of(queries):
        _prefill_kernel[(row_tiles, num_kv_heads, batch)](
            queries, key_cache, value_cache, block_tables, context_lengths, query_starts, output,
            *queries.stride()[:2], *key_cache.stride()[:3], *value_cache.stride()[:3],
            block_tables.stride(0), *output.stride()[:2],
            SCALE=float(scale), WINDOW=window, SOFTCAP=None if softcap is None else float(softcap),
            BLOCK_SIZE=block_size, GROUP=group, HEAD_DIM=head_dim,
            ROW_TILE=key_tile, KEY_TILE=key_tile, DIM_TILE=dim_tile, num_warps=num_warps,
        )  # fmt: skip
    return output


def _effective_window(window: int | None, block_tables: Tensor, key_cache: Tensor) -> int | None:
    """None where it hides nothing: a number as large as the table might not fit the kernel's 32 bits."""
    return None if window is not None and window >= block_tables.shape[1] * key_cache.shape[1] else window


@triton.jit
def _tanh(x):
    # Near 0 a Pade fraction: there 1 - exp(-2x) would lose the digits of x.
    square = x * x
    near = x * (135135 + square * (17325 + square * (378 + square)))
    near = near / (135135 + square * (62370 + square * (3150 + square * 28)))
    decay = tl.exp(-2 * tl.abs(x))
    far = (1 - decay) / (1 + decay)
    return tl.where(tl.abs(x) < 0.5, near, tl.where(x < 0, -far, far))


@triton.jit
def _attend(
    queries, query_positions, first, last,
    key_ptr, value_ptr, table_ptr,
    key_block_stride, key_slot_stride,
    value_block_stride, value_slot_stride,
    SCALE: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, KEY_TILE: tl.constexpr, DIM_TILE: tl.constexpr,
):  # fmt: skip
    """Online softmax of a tile of query rows over the keys [first, last) of one sequence and KV head.

    queries: [rows, DIM_TILE], zeros from HEAD_DIM on. query_positions: [rows]; a query sees the keys up to
    its own position, with a WINDOW the last WINDOW of these only.
    table_ptr: int32, the sequence's block ids; the key at position p is in slot p % BLOCK_SIZE of block
    table[p // BLOCK_SIZE].
    key_ptr, value_ptr: slot 0 of block 0 of this KV head; slot s of block b begins b * block_stride +
    s * slot_stride elements further on, computed in 64 bits, and has HEAD_DIM elements side by side.
    Outside of [first, last) table and slots may hold anything, NaN too, and are not read. KEY_TILE keys are
    taken at a time.

    score = SCALE * (query . key); with a SOFTCAP, SOFTCAP * tanh(score / SOFTCAP).
    Sums run in float32, in float64 for float64 queries; products are not rounded to TF32.

    Returns for each row, with best its largest score: the sum of exp(score - best) * value [rows, DIM_TILE],
    best [rows], and the sum of exp(score - best) [rows]. For a row that sees no key: 0, -inf and 0.
    """
    wide: tl.constexpr = tl.float64 if queries.dtype == tl.float64 else tl.float32
    best = tl.full([queries.shape[0]], float("-inf"), wide)
    total = tl.zeros([queries.shape[0]], wide)
    output = tl.zeros([queries.shape[0], DIM_TILE], wide)
    dims = tl.arange(0, DIM_TILE)
    # Tiles lie at multiples of KEY_TILE wherever `first` is: a key falls into the same tile for every caller.
    for start in range(first // KEY_TILE * KEY_TILE, last, KEY_TILE):
        positions = start + tl.arange(0, KEY_TILE)
        inside = (positions >= first) & (positions < last)
        # A slot outside is not loaded at all: it may hold NaN, its table entry anything, and 0 * NaN is NaN.
        blocks = tl.load(table_ptr + positions // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
        offsets = (positions % BLOCK_SIZE).to(tl.int64)
        loaded = inside[:, None] & (dims < HEAD_DIM)[None, :]
        key_at = blocks * key_block_stride + offsets * key_slot_stride
        keys = tl.load(key_ptr + key_at[:, None] + dims[None, :], mask=loaded, other=0.0)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * SCALE
        if SOFTCAP is not None:
            scores = SOFTCAP * _tanh(scores / SOFTCAP)
        visible = inside[None, :] & (positions[None, :] <= query_positions[:, None])
        if WINDOW is not None:
            visible = visible & (positions[None, :] > query_positions[:, None] - WINDOW)
        scores = tl.where(visible, scores, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, 1))
        # A row that has seen no key yet keeps its -inf, and -inf minus -inf is NaN.
        shift = tl.where(new_best == float("-inf"), 0.0, new_best)
        weights = tl.exp(scores - shift[:, None])
        rescale = tl.exp(best - shift)
        value_at = blocks * value_block_stride + offsets * value_slot_stride
        values = tl.load(value_ptr + value_at[:, None] + dims[None, :], mask=loaded, other=0.0)
        total = total * rescale + tl.sum(weights, 1)
        output = output * rescale[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        best = new_best
    return output, best, total


@triton.jit
def _group_heads(program, GROUP: tl.constexpr, ROW_TILE: tl.constexpr):
    """The KV head and the query heads of one program along the grid's axis of heads.

    GROUP query heads in a row share one KV head. Each KV head has as many programs as there are tiles of
    ROW_TILE in its group, the last of them perhaps not full; the programs of KV head 0 come first.

    Returns the KV head (int64), ROW_TILE query heads (int64), and which of these belong to the group.
    """
    head_tiles = tl.cdiv(GROUP, ROW_TILE)
    kv_head = (program // head_tiles).to(tl.int64)
    members = program % head_tiles * ROW_TILE + tl.arange(0, ROW_TILE)
    return kv_head, kv_head * GROUP + members, members < GROUP


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
    # Offsets are 64-bit from here on: a large pool has more than 2^31 elements.
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


@triton.jit
def _merge_kernel(
    partial_ptr, statistics_ptr, length_ptr, output_ptr,
    num_heads, num_splits,
    output_row_stride, output_head_stride,
    WINDOW: tl.constexpr, SPLIT_LENGTH: tl.constexpr, HEAD_DIM: tl.constexpr,
    SPLIT_TILE: tl.constexpr, DIM_TILE: tl.constexpr,
):  # fmt: skip
    """Merge what the splits of one row and head have found; program (i, j) has row i and head j.

    length_ptr: int32 [batch], tokens of context. Split s has read the keys from s * SPLIT_LENGTH on. Where it
    has any (with a WINDOW: any of the last WINDOW), it has written what `_attend` returned:
    partial_ptr: [batch, num_heads, num_splits, HEAD_DIM], sums of exp(score - best) * value; contiguous.
    statistics_ptr: [batch, num_heads, num_splits, 2], best and the sum of exp(score - best); contiguous.
    All other splits were never written: they may hold NaN. SPLIT_TILE splits are taken at a time.
    output_ptr: [batch, num_heads, HEAD_DIM], rows output_row_stride and heads output_head_stride apart, to be
    written: the attention over all keys, in the dtype of the output; zeros for a row without context.
    """
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    length = tl.load(length_ptr + row)
    first_split = 0
    if WINDOW is not None:
        first_split = tl.maximum(length - WINDOW, 0) // SPLIT_LENGTH
    last_split = tl.cdiv(length, SPLIT_LENGTH)
    dims = tl.arange(0, DIM_TILE)
    wide: tl.constexpr = partial_ptr.dtype.element_ty
    best = tl.full([1], float("-inf"), wide)
    total = tl.zeros([1], wide)
    output = tl.zeros([DIM_TILE], wide)
    # The online softmax once more, with splits in the place of keys; only splits that were written are read.
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


@triton.jit
def _prefill_kernel(
    query_ptr, key_ptr, value_ptr, table_ptr, length_ptr, start_ptr, output_ptr,
    query_row_stride, query_head_stride,
    key_block_stride, key_slot_stride, key_head_stride,
    value_block_stride, value_slot_stride, value_head_stride,
    table_row_stride,
    output_row_stride, output_head_stride,
    SCALE: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
    ROW_TILE: tl.constexpr, KEY_TILE: tl.constexpr, DIM_TILE: tl.constexpr,
):  # fmt: skip
    tile_start = tl.program_id(0) * ROW_TILE
    kv_head = tl.program_id(1).to(tl.int64)
    sequence = tl.program_id(2).to(tl.int64)
    query_start = tl.load(start_ptr + sequence)
    query_length = tl.load(start_ptr + sequence + 1) - query_start
    if tile_start >= query_length * GROUP:
        return
    # The heads of a group share their keys: a tile holds (query, head) pairs, the group's heads innermost.
    pairs = tile_start + tl.arange(0, ROW_TILE)
    indices = pairs // GROUP
    heads = kv_head * GROUP + pairs % GROUP
    rows = (query_start + indices).to(tl.int64)
    dims = tl.arange(0, DIM_TILE)
    inside = (indices < query_length)[:, None] & (dims < HEAD_DIM)[None, :]
    query_at = rows * query_row_stride + heads * query_head_stride
    queries = tl.load(query_ptr + query_at[:, None] + dims[None, :], mask=inside, other=0.0)
    length = tl.load(length_ptr + sequence)
    cached = length - query_length
    last = tl.minimum(length, cached + (tile_start + ROW_TILE - 1) // GROUP + 1)
    first = 0
    if WINDOW is not None:
        first = tl.maximum(0, cached + tile_start // GROUP - WINDOW + 1)
    output, _, total = _attend(
        queries, cached + indices, first, last,
        key_ptr + kv_head * key_head_stride,
        value_ptr + kv_head * value_head_stride,
        table_ptr + sequence * table_row_stride,
        key_block_stride, key_slot_stride,
        value_block_stride, value_slot_stride,
        SCALE, WINDOW, SOFTCAP, BLOCK_SIZE, HEAD_DIM, KEY_TILE, DIM_TILE,
    )  # fmt: skip
    output = output / tl.where(total == 0, 1.0, total)[:, None]  # no key seen: 0 / 1
    output_at = rows * output_row_stride + heads * output_head_stride
    output_ptrs = output_ptr + output_at[:, None] + dims[None, :]
    tl.store(output_ptrs, output.to(output_ptr.dtype.element_ty), mask=inside)


def _tiles(dtype: torch.dtype, head_dim: int) -> tuple[int, int, int]:
    """Padded head_dim, keys in a tile, and warps: what spills no registers. The block size plays no part."""
    dim_tile = max(16, triton.next_power_of_2(head_dim))
    row_bytes = dim_tile * dtype.itemsize
    key_tile = max(16, min(64 if dtype.itemsize == 2 else 32, 16384 // row_bytes))
    return dim_tile, key_tile, 4 if row_bytes <= 512 else 8
