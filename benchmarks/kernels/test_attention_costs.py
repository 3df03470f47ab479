"""What attention over blocks costs: reference and twins as batch and context grow, and against torch's own.

torch's scaled_dot_product_attention reads K and V that lie in one piece; the decode kernel reads as many
bytes through block tables. Both get memory of the same kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from minipaged.kernels import attention, attention_cpu
from minipaged.models import huge_pages
from minipaged.reference import attention as reference

from .stopwatch import best_of, needs_gpu, synchronised

BLOCK_SIZE = 16
SIDES = ["reference", "numba", pytest.param("triton", marks=needs_gpu)]
SHAPES = {"9/3 heads of 64": (9, 3, 64), "32/8 heads of 128": (32, 8, 128)}
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}


class Work(NamedTuple):
    """Sequences of one length, their K and V scattered over blocks and, the same numbers, in one piece."""

    queries: Tensor  # [batch, num_heads, head_dim]
    key_cache: Tensor  # [num_blocks, block_size, num_kv_heads, head_dim], a view of the pool
    value_cache: Tensor
    block_tables: Tensor  # int32 [batch, max_blocks]
    context_lengths: Tensor  # int32 [batch]
    keys: Tensor  # [batch, num_kv_heads, context, head_dim], contiguous
    values: Tensor

    @property
    def paged(self) -> tuple[Tensor, ...]:
        """What the kernels take."""
        return self[:5]


def make_work(batch: int, context: int, shape: tuple[int, int, int], dtype: torch.dtype) -> Work:
    """Random work. `context` is a multiple of the block size."""
    num_heads, num_kv_heads, head_dim = shape
    per_row = context // BLOCK_SIZE
    pool = huge_pages.empty((batch * per_row, 1, 2, BLOCK_SIZE, num_kv_heads, head_dim), dtype).normal_()
    tables = torch.randperm(batch * per_row).view(batch, per_row)
    pieces = []
    for cache in (pool[:, 0, 0], pool[:, 0, 1]):
        piece = huge_pages.empty((batch, num_kv_heads, context, head_dim), dtype)
        pieces.append(piece.copy_(cache[tables].flatten(1, 2).transpose(1, 2)))
    lengths = torch.full((batch,), context, dtype=torch.int32)
    queries = torch.randn(batch, num_heads, head_dim).to(dtype)
    return Work(queries, pool[:, 0, 0], pool[:, 0, 1], tables.int(), lengths, *pieces)


def contiguous_attention(work: Work) -> Tensor:
    """torch's own, [batch, num_heads, head_dim]."""
    queries = work.queries.unsqueeze(2)
    return scaled_dot_product_attention(queries, work.keys, work.values, enable_gqa=True).squeeze(2)


def expanded(work: Work) -> Work:
    """The work with a K and V of its own for every query head, as torch takes it without enable_gqa."""
    copies = []
    for piece in (work.keys, work.values):
        batch, num_kv_heads, context, head_dim = piece.shape
        group = work.queries.shape[1] // num_kv_heads
        copy = huge_pages.empty((batch, num_kv_heads * group, context, head_dim), piece.dtype)
        copies.append(copy.copy_(piece.repeat_interleave(group, dim=1)))
    return work._replace(keys=copies[0], values=copies[1])


def decode_call(side: str, work: Work) -> Callable[[], Any]:
    """One decode step on one side. The reference takes one sequence after the other."""
    scale = work.queries.shape[-1] ** -0.5
    if side == "reference":
        queries, keys, values, tables, lengths = (tensor.tolist() for tensor in work.paged)
        return lambda: [
            reference.decode_attention(query, keys, values, table, length, scale=scale)
            for query, table, length in zip(queries, tables, lengths, strict=True)
        ]
    if side == "numba":
        return lambda: attention_cpu.decode_attention(*work.paged, scale=scale)
    on_device = [tensor.cuda() for tensor in work.paged]
    return synchronised(lambda: attention.decode_attention(*on_device, scale=scale))


def assert_near(result: Any, expected: Tensor) -> None:
    tolerance = TOLERANCE[expected.dtype]
    result = torch.as_tensor(result).cpu().to(expected.dtype)
    torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("batch", [1, 4, 8])
def test_decode_for_a_batch(measure, side, batch):
    work = make_work(batch, 64, SHAPES["9/3 heads of 64"], torch.float32)
    result = measure("attention, decode 64 tokens", side, f"batch {batch}", decode_call(side, work))
    assert_near(result, contiguous_attention(work))


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("context", [64, 128, 512])
def test_decode_over_a_context(measure, side, context):
    work = make_work(1, context, SHAPES["9/3 heads of 64"], torch.float32)
    result = measure("attention, decode 1 sequence", side, f"context {context}", decode_call(side, work))
    assert_near(result, contiguous_attention(work))


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("length", [16, 48])
def test_prefill_of_a_prompt(measure, side, length):
    work = make_work(1, length, SHAPES["9/3 heads of 64"], torch.float32)
    queries = torch.randn(length, 9, 64)
    scale = 64**-0.5
    if side == "reference":
        rows, keys, values, (table,) = (tensor.tolist() for tensor in (queries, *work.paged[1:4]))

        def call() -> Any:
            return reference.prefill_attention(rows, keys, values, table, length, scale=scale)

    else:
        starts = torch.tensor([0, length], dtype=torch.int32)
        where = "cuda" if side == "triton" else "cpu"
        arguments = [tensor.to(where) for tensor in (queries, *work.paged[1:], starts)]
        prefill = (attention if side == "triton" else attention_cpu).prefill_attention

        def call() -> Any:
            return prefill(*arguments, scale=scale, max_query_length=length)

    result = measure(
        "attention, prefill", side, f"{length} tokens", synchronised(call) if side == "triton" else call
    )
    dense = scaled_dot_product_attention(
        queries.transpose(0, 1)[None], work.keys, work.values, is_causal=True, enable_gqa=True
    )
    assert_near(result, dense[0].transpose(0, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_decode_on_the_cpu_against_torch(timed, note_ratio, shape, dtype):
    """At batch 32 and context 1,024. Without timing: a small one, and only that both say the same."""
    work = make_work(*((32, 1024) if timed else (2, 64)), SHAPES[shape], dtype)
    wide = expanded(work)
    ours = decode_call("numba", work)
    assert_near(ours(), contiguous_attention(work))
    assert_near(ours(), contiguous_attention(wide))
    if not timed:
        return
    # Threads must all get a core in the same moment: where others work too, that is chance, so only noted.
    threads = torch.get_num_threads()
    if threads > 1:
        compare(ours, work, wide, f"{shape}, {str(dtype)[6:]}, threads: {threads}", note_ratio)
    torch.set_num_threads(1)
    try:
        ratio = compare(ours, work, wide, f"{shape}, {str(dtype)[6:]}, threads: 1", note_ratio)
    finally:
        torch.set_num_threads(threads)
    assert ratio > 1 / 1.5


def compare(
    ours: Callable[[], Any], work: Work, wide: Work, name: str, note_ratio: Callable[..., None]
) -> float:
    """torch's time, the better way it has, over ours: above 1 we are faster."""
    ways = {
        "enable_gqa": lambda: contiguous_attention(work),
        "expanded heads": lambda: contiguous_attention(wide),
    }
    seconds = dict(zip(ways, best_of(list(ways.values()), 6), strict=True))
    way = min(ways, key=seconds.__getitem__)
    paged, contiguous = best_of([ours, ways[way]], 40)
    note_ratio(
        f"CPU decode, torch's time over ours, {name}",
        contiguous / paged,
        f"({1e3 * paged:.1f} ms, torch {1e3 * contiguous:.1f} with {way}, its better way)",
    )
    return contiguous / paged
