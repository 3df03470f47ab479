"""11. The paged decode kernel: attention over a block table, by many programs at a time

README.md explains it. Write each body that raises NotImplementedError; the rest is given.
Grade it: pytest lessons/11_paged_decode_kernel    A hint: minipaged lessons hint 11
"""

from __future__ import annotations

import torch
from torch import Tensor

from minipaged.kernels._checks import check_inputs, check_launch, check_one_query_each
from minipaged.kernels._triton import _tanh, tl, triton
from minipaged.kernels._triton_arguments import Scoring, scoring_for, sizes_for, strides_for

# Tokens of context that one decode program reads. A constant, so that the way a context is split depends on
# its own length only, and its result never on the other sequences of the batch.
SPLIT_LENGTH = 256


@triton.jit
def _group_heads(program, GROUP: tl.constexpr, ROW_TILE: tl.constexpr):
    """The KV head and the query heads of one program along the grid's axis of heads.

    GROUP neighbouring query heads share one KV head. Each KV head has as many programs as there are tiles of
    ROW_TILE in its group, the last of them perhaps not full; the programs of KV head 0 come first.

    Returns the KV head (int64), ROW_TILE query heads (int64), and which of these belong to the group.
    """
    raise NotImplementedError


@triton.jit
def _attend(
    queries, query_positions, first, last, key_ptr, value_ptr, table_ptr, strides,
    SCORING: tl.constexpr, SIZES: tl.constexpr,
):  # fmt: skip
    """Online softmax of a tile of query rows over the keys [first, last) of one sequence and KV head.

    queries: [rows, DIM_TILE], zeros from HEAD_DIM on. query_positions: [rows]; a query sees the keys up to
    its own position, with a WINDOW the last WINDOW of these only.
    table_ptr: int32, the sequence's block ids; the key at position p is in slot p % BLOCK_SIZE of block
    table[p // BLOCK_SIZE]. key_ptr, value_ptr: slot 0 of block 0 of this KV head; slot s of block b begins
    b * strides.key_cache.block + s * strides.key_cache.slot elements further on, computed in 64 bits (values:
    strides.value_cache), and has HEAD_DIM elements side by side. Outside of [first, last) table and slots
    may hold anything, NaN too, and are not read. Names in capitals are fields, such as SIZES.KEY_TILE, the
    number of keys that are taken at a time.

    score = SCALE * (query . key); with a SOFTCAP, SOFTCAP * tanh(score / SOFTCAP). Sums run in float32, in
    float64 for float64 queries; products are not rounded to TF32.
    Returns, for each query row: the sum of exp(score - best) * value [rows, DIM_TILE]; its best (largest)
    score [rows]; the sum of exp(score - best) [rows]. If a row sees no key, these are 0, -inf and 0.
    """
    raise NotImplementedError


@triton.jit
def _decode_kernel(
    query_ptr, key_ptr, value_ptr, table_ptr, length_ptr, partial_ptr, statistics_ptr, strides,
    SCORING: tl.constexpr, SIZES: tl.constexpr,
):  # fmt: skip
    """Attend from the newest token of a sequence to a split of its context, with a tile of query heads."""
    # Offsets are 64-bit from here on: a large pool has more than 2^31 elements.
    row = tl.program_id(0).to(tl.int64)
    kv_head, heads, is_member = _group_heads(tl.program_id(1), SIZES.GROUP, SIZES.ROW_TILE)
    split, num_splits = tl.program_id(2), tl.num_programs(2)
    length = tl.load(length_ptr + row)
    first = split * SIZES.SPLIT_LENGTH
    last = tl.minimum(first + SIZES.SPLIT_LENGTH, length)
    if SCORING.WINDOW is not None:
        first = tl.maximum(first, length - SCORING.WINDOW)
    if first >= last:
        return
    dims = tl.arange(0, SIZES.DIM_TILE)
    inside = is_member[:, None] & (dims < SIZES.HEAD_DIM)[None, :]
    query_at = row * strides.queries.token + heads * strides.queries.head
    queries = tl.load(query_ptr + query_at[:, None] + dims[None, :], mask=inside, other=0.0)
    positions = tl.zeros_like(heads).to(tl.int32) + (length - 1)
    key_ptr += kv_head * strides.key_cache.head
    value_ptr += kv_head * strides.value_cache.head
    table_ptr += row * strides.tables.row
    output, best, total = _attend(
        queries, positions, first, last, key_ptr, value_ptr, table_ptr, strides, SCORING, SIZES
    )
    at = (row * SIZES.NUM_HEADS + heads) * num_splits + split
    tl.store(partial_ptr + at[:, None] * SIZES.HEAD_DIM + dims[None, :], output, mask=inside)
    tl.store(statistics_ptr + at * 2, best, mask=is_member)
    tl.store(statistics_ptr + at * 2 + 1, total, mask=is_member)


@triton.jit
def _merge_kernel(
    partial_ptr, statistics_ptr, length_ptr, output_ptr, num_splits, output_strides,
    WINDOW: tl.constexpr, SPLIT_TILE: tl.constexpr, SIZES: tl.constexpr,
):  # fmt: skip
    """Merge the splits of one sequence and query head; program (i, j) has sequence i and head j.

    length_ptr: int32 [batch], tokens of context. Split s has read the keys from s * SPLIT_LENGTH on. Where it
    has any (with a WINDOW: any of the last WINDOW), it has written what `_attend` returned:
    partial_ptr: [batch, NUM_HEADS, num_splits, HEAD_DIM], sums of exp(score - best) * value; contiguous.
    statistics_ptr: [batch, NUM_HEADS, num_splits, 2], best and the sum of exp(score - best); contiguous.
    All other splits were never written: they may hold NaN. SPLIT_TILE splits are taken at a time.
    output_ptr: [batch, NUM_HEADS, HEAD_DIM], to be written: the attention, zeros for a sequence without
    context. Sequences lie output_strides.token elements apart, heads output_strides.head, in 64 bits.
    """
    raise NotImplementedError


def decode_attention(
    queries: Tensor, key_cache: Tensor, value_cache: Tensor, block_tables: Tensor, context_lengths: Tensor,
    *, scale: float, window: int | None = None, softcap: float | None = None,
) -> Tensor:  # fmt: skip
    """Attention of one new token per sequence over its paged context (paper section 4.1, equation 4).

    Args:
        queries: [batch, num_heads, head_dim]; query head h reads KV head h // (num_heads // num_kv_heads).
        key_cache, value_cache: [num_blocks, block_size, num_kv_heads, head_dim], may be strided views.
        block_tables: int32 [batch, max_blocks], physical block ids; entries past the context are never read.
        context_lengths: int32 [batch], tokens in the cache, the query's own among them; 0 gives zeros.
        scale: factor on the scores, usually head_dim ** -0.5.
        window: number of last tokens a query sees, itself among them; None for all.
        softcap: c in c * tanh(score / c), applied after the scale; None for none.

    Returns [batch, num_heads, head_dim] in the dtype of `queries`; sums run in float32 (float64 for float64).

    Raises TypeError for a dtype, ValueError for a shape, stride, device or option, and RuntimeError for CPU
    tensors where Triton is not interpreted. On the CPU, ValueError also for a length or a block id.
    """
    check_inputs(queries, key_cache, value_cache, block_tables, context_lengths)
    check_launch(_decode_kernel, queries, key_cache, block_tables, context_lengths)
    check_one_query_each(queries, block_tables)
    scoring = scoring_for(scale, window, softcap)
    return _launch_decode(queries, key_cache, value_cache, block_tables, context_lengths, scoring)


def _launch_decode(
    queries: Tensor, key_cache: Tensor, value_cache: Tensor, block_tables: Tensor, context_lengths: Tensor,
    scoring: Scoring,
) -> Tensor:  # fmt: skip
    output = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
    batch, num_heads, head_dim = queries.shape
    if batch == 0:
        return output
    sizes, num_warps = sizes_for(queries, key_cache, SPLIT_LENGTH)
    # The table's capacity and not the longest context: reading that would make the host wait for the device.
    num_splits = max(1, triton.cdiv(block_tables.shape[1] * sizes.BLOCK_SIZE, SPLIT_LENGTH))
    wide = torch.float64 if queries.dtype == torch.float64 else torch.float32
    partial = queries.new_empty((batch, num_heads, num_splits, head_dim), dtype=wide)
    statistics = queries.new_empty((batch, num_heads, num_splits, 2), dtype=wide)
    strides = strides_for(queries, key_cache, value_cache, block_tables, output)
    context_lengths = context_lengths.contiguous()
    head_programs = key_cache.shape[2] * triton.cdiv(sizes.GROUP, sizes.ROW_TILE)
    with torch.cuda.device_of(queries):
        _decode_kernel[(batch, head_programs, num_splits)](
            queries, key_cache, value_cache, block_tables, context_lengths, partial, statistics, strides,
            SCORING=scoring, SIZES=sizes, num_warps=num_warps,
        )  # fmt: skip
        _merge_kernel[(batch, num_heads)](
            partial, statistics, context_lengths, output, num_splits, strides.output,
            WINDOW=scoring.WINDOW, SPLIT_TILE=8, SIZES=sizes,
        )  # fmt: skip
    return output
