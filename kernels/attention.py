"""Attention over blocks with online softmax, in Triton: decode with a context that is split.

Every key position looks up its own physical block, so a tile of keys and a block need not be of one size.
Twin: reference/attention.py; kernels/attention_cpu.py is the same for the CPU. The kernel of prefill, which
goes through the same loop, is in kernels/_prefill.py. Lesson: lessons/11_paged_decode_kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ._checks import check_inputs, check_launch, check_one_query_each
from ._triton import _tanh, tl, triton
from ._triton_arguments import Scoring, scoring_for, sizes_for, strides_for

# Tokens of context that one decode program reads. A constant, so that the way a context is split depends on
# its own length only, and its result never on the other sequences of the batch.
SPLIT_LENGTH = 256


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
    wide: tl.constexpr = tl.float64 if queries.dtype == tl.float64 else tl.float32
    best = tl.full([queries.shape[0]], float("-inf"), wide)
    total = tl.zeros([queries.shape[0]], wide)
    output = tl.zeros([queries.shape[0], queries.shape[1]], wide)
    dims = tl.arange(0, SIZES.DIM_TILE)
    # Tiles begin at multiples of KEY_TILE wherever `first` is, so that sums run in the same order for all.
    for start in range(first // SIZES.KEY_TILE * SIZES.KEY_TILE, last, SIZES.KEY_TILE):
        positions = start + tl.arange(0, SIZES.KEY_TILE)
        inside = (positions >= first) & (positions < last)
        # A slot outside is not loaded at all: it may hold NaN, its table entry anything, and 0 * NaN is NaN.
        blocks = tl.load(table_ptr + positions // SIZES.BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
        slots = (positions % SIZES.BLOCK_SIZE).to(tl.int64)
        loaded = inside[:, None] & (dims < SIZES.HEAD_DIM)[None, :]
        key_at = blocks * strides.key_cache.block + slots * strides.key_cache.slot
        keys = tl.load(key_ptr + key_at[:, None] + dims[None, :], mask=loaded, other=0.0)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * SCORING.SCALE
        if SCORING.SOFTCAP is not None:
            scores = SCORING.SOFTCAP * _tanh(scores / SCORING.SOFTCAP)
        visible = inside[None, :] & (positions[None, :] <= query_positions[:, None])
        if SCORING.WINDOW is not None:
            visible = visible & (positions[None, :] > query_positions[:, None] - SCORING.WINDOW)
        scores = tl.where(visible, scores, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, 1))
        # A row that has seen no key yet keeps its -inf, and -inf minus -inf is NaN.
        shift = tl.where(new_best == float("-inf"), 0.0, new_best)
        weights = tl.exp(scores - shift[:, None])
        rescale = tl.exp(best - shift)
        value_at = blocks * strides.value_cache.block + slots * strides.value_cache.slot
        values = tl.load(value_ptr + value_at[:, None] + dims[None, :], mask=loaded, other=0.0)
        total = total * rescale + tl.sum(weights, 1)
        output = output * rescale[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        best = new_best
    return output, best, total


@triton.jit
def _group_heads(program, GROUP: tl.constexpr, ROW_TILE: tl.constexpr):
    """The KV head and the query heads of one program along the grid's axis of heads.

    GROUP neighbouring query heads share one KV head. Each KV head has as many programs as there are tiles of
    ROW_TILE in its group, the last of them perhaps not full; the programs of KV head 0 come first.

    Returns the KV head (int64), ROW_TILE query heads (int64), and which of these belong to the group.
    """
    head_tiles = tl.cdiv(GROUP, ROW_TILE)
    kv_head = (program // head_tiles).to(tl.int64)
    members = program % head_tiles * ROW_TILE + tl.arange(0, ROW_TILE)
    return kv_head, kv_head * GROUP + members, members < GROUP


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


@triton.jit(do_not_specialize=["num_splits"])  # else compiled anew for 1 and for multiples of 16
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
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    length = tl.load(length_ptr + row)
    first_split = 0
    if WINDOW is not None:
        first_split = tl.maximum(length - WINDOW, 0) // SIZES.SPLIT_LENGTH
    last_split = tl.cdiv(length, SIZES.SPLIT_LENGTH)
    dims = tl.arange(0, SIZES.DIM_TILE)
    wide: tl.constexpr = partial_ptr.dtype.element_ty
    best = tl.full([1], float("-inf"), wide)
    total = tl.zeros([1], wide)
    output = tl.zeros_like(dims).to(wide)
    # The online softmax once more, with splits in the place of keys; only splits that were written are read.
    for start in range(first_split, last_split, SPLIT_TILE):
        splits = start + tl.arange(0, SPLIT_TILE)
        inside = splits < last_split
        at = (row * SIZES.NUM_HEADS + head) * num_splits + splits
        split_best = tl.load(statistics_ptr + at * 2, mask=inside, other=float("-inf"))
        split_total = tl.load(statistics_ptr + at * 2 + 1, mask=inside, other=0.0)
        loaded = inside[:, None] & (dims < SIZES.HEAD_DIM)[None, :]
        partial = tl.load(partial_ptr + at[:, None] * SIZES.HEAD_DIM + dims[None, :], mask=loaded, other=0.0)
        new_best = tl.maximum(best, tl.max(split_best, 0))
        weights = tl.exp(split_best - new_best)
        rescale = tl.exp(best - new_best)
        total = total * rescale + tl.sum(split_total * weights, 0)
        output = output * rescale + tl.sum(partial * weights[:, None], 0)
        best = new_best
    output = output / tl.where(total == 0, 1.0, total)  # an empty row: 0 / 1
    at = row * output_strides.token + head * output_strides.head
    tl.store(output_ptr + at + dims, output.to(output_ptr.dtype.element_ty), mask=dims < SIZES.HEAD_DIM)


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
    # By capacity: to read the longest context the host would wait. Programs beyond a context return at once.
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


def prefill_attention(
    queries: Tensor, key_cache: Tensor, value_cache: Tensor, block_tables: Tensor, context_lengths: Tensor,
    query_starts: Tensor, *, scale: float, window: int | None = None, softcap: float | None = None,
    max_query_length: int | None = None,
) -> Tensor:  # fmt: skip
    """Causal attention of a ragged batch of last tokens over their paged contexts (paper section 4.3).

    Row i of sequence s is the token at position context_lengths[s] - query_length + i, so that a chunk of a
    prompt sees the chunks before it. queries: [total_tokens, num_heads, head_dim], the sequences' rows one
    after the other. query_starts: int32 [batch + 1], first row of each sequence, and the total; lengths of 0
    are allowed. max_query_length: no sequence has more rows; None takes total_tokens. A host number, for the
    grid. The rest, and what is raised, are as in `decode_attention`.

    Returns [total_tokens, num_heads, head_dim] in the dtype of `queries`; zeros for rows of no sequence.
    """
    from ._prefill import launch_prefill  # here, because that file uses `_attend` of this one

    check_inputs(queries, key_cache, value_cache, block_tables, context_lengths)
    check_launch(_attend, queries, key_cache, block_tables, context_lengths)
    scoring = scoring_for(scale, window, softcap)
    rows = block_tables, context_lengths, query_starts
    return launch_prefill(queries, key_cache, value_cache, rows, scoring, max_query_length)
