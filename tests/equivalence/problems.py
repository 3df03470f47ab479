"""Random paged-attention problems, their dense float64 answer, and the error each dtype is allowed.

A problem keeps its K and V twice: scattered over the blocks of a pool in which every slot that no sequence
owns holds NaN, and as plain tensors per sequence. The oracle reads the plain ones only, so a fault in the
paging can't hide in both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

# The largest error of one output value, relative to the largest value of its head's vector. float64 and
# float32 leave room for a sum of a few hundred terms; float16 and bfloat16 for rounding the softmax weights
# and the output, 2^-11 and 2^-8 each.
ALLOWED_ERROR = {torch.float64: 1e-13, torch.float32: 5e-6, torch.float16: 3e-3, torch.bfloat16: 2.4e-2}


@dataclass(frozen=True)
class Problem:
    """One attention call. `query_starts` is None for decode: one query for each sequence."""

    queries: Tensor  # decode [batch, num_heads, head_dim]; prefill [total_tokens, num_heads, head_dim]
    key_cache: Tensor  # strided view [num_blocks, block_size, num_kv_heads, head_dim]
    value_cache: Tensor
    block_tables: Tensor  # int32 [batch, max_blocks]
    context_lengths: Tensor  # int32 [batch]
    query_starts: Tensor | None  # int32 [batch + 1]
    keys: list[Tensor]  # per sequence [context_length, num_kv_heads, head_dim], in the cache's dtype
    values: list[Tensor]
    scale: float
    window: int | None
    softcap: float | None

    @property
    def options(self) -> dict[str, Any]:
        return {"scale": self.scale, "window": self.window, "softcap": self.softcap}

    @property
    def query_ranges(self) -> list[tuple[int, int]]:
        """First and past-the-last row of `queries`, for each sequence."""
        if self.query_starts is None:
            return [(row, row + 1) for row in range(len(self.keys))]
        starts = self.query_starts.tolist()
        return list(pairwise(starts))


def make_problem(
    context_lengths: Sequence[int],
    query_lengths: Sequence[int] | None = None,
    *,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 16,
    block_size: int = 4,
    dtype: torch.dtype = torch.float32,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    seed: int = 0,
    device: str = "cpu",
) -> Problem:
    """A random problem: decode where `query_lengths` is None, else prefill of that many last tokens each."""
    generator = torch.Generator().manual_seed(seed)

    def normal(count: int, heads: int) -> Tensor:
        rows = torch.randn(count, heads, head_dim, generator=generator, dtype=torch.float64)
        return rows.to(dtype).to(device)

    keys = [normal(length, num_kv_heads) for length in context_lengths]
    values = [normal(length, num_kv_heads) for length in context_lengths]
    total = len(keys) if query_lengths is None else sum(query_lengths)
    starts = None
    if query_lengths is not None:
        ends = [sum(query_lengths[: index + 1]) for index in range(len(query_lengths))]
        starts = torch.tensor([0, *ends], dtype=torch.int32, device=device)
    return from_dense(
        normal(total, num_heads),
        keys,
        values,
        query_starts=starts,
        block_size=block_size,
        scale=head_dim**-0.5 if scale is None else scale,
        window=window,
        softcap=softcap,
        seed=seed,
    )


def from_dense(
    queries: Tensor,
    keys: list[Tensor],
    values: list[Tensor],
    *,
    query_starts: Tensor | None = None,
    block_size: int = 4,
    scale: float = 1.0,
    window: int | None = None,
    softcap: float | None = None,
    seed: int = 0,
    stale_entry: int = -1,
) -> Problem:
    """Scatter K and V over shuffled blocks of a NaN-filled pool; unused table entries hold `stale_entry`."""
    lengths = [len(rows) for rows in keys]
    needed = [math.ceil(length / block_size) for length in lengths]
    num_blocks = sum(needed) + 2  # two blocks that nobody owns
    order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(seed + 1)).tolist()
    num_kv_heads, head_dim = keys[0].shape[1:]
    # Layer 1 of 2, as the engine's pool has it: the caches are strided views, never contiguous.
    pool = keys[0].new_full((num_blocks, 2, 2, block_size, num_kv_heads, head_dim), math.nan)
    key_cache, value_cache = pool[:, 1, 0], pool[:, 1, 1]
    tables = torch.full((len(lengths), max([*needed, 1]) + 1), stale_entry, dtype=torch.int32)
    for row, length in enumerate(lengths):
        blocks = [order.pop() for _ in range(needed[row])]
        tables[row, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
        for position in range(length):
            block, offset = blocks[position // block_size], position % block_size
            key_cache[block, offset] = keys[row][position]
            value_cache[block, offset] = values[row][position]
    device = queries.device
    return Problem(
        queries=queries,
        key_cache=key_cache,
        value_cache=value_cache,
        block_tables=tables.to(device),
        context_lengths=torch.tensor(lengths, dtype=torch.int32, device=device),
        query_starts=query_starts,
        keys=keys,
        values=values,
        scale=scale,
        window=window,
        softcap=softcap,
    )


def assert_same_answer(result: Tensor, expected: Tensor, device: str | torch.device | None = None) -> None:
    """Compare launches that may run different code: of other strides, or with a window that hides nothing.

    On a GPU, Triton compiles one kernel for each, and the compilers may fuse or order a sum differently. The
    answers then agree to a few roundings. The interpreter and Numba run the same operations for both, so
    there the answers are equal to the bit.
    """
    if torch.device(device or result.device).type == "cpu":
        assert torch.equal(result, expected)
    else:
        few = 4 * torch.finfo(result.dtype).eps
        torch.testing.assert_close(result, expected, rtol=few, atol=few)


def zero_query(
    values: Sequence[Sequence[float]],
    query_lengths: Sequence[int] | None = None,
    *,
    device: str = "cpu",
    **options: Any,
) -> Problem:
    """Queries of 0 weigh all keys alike: the answer is the mean of the values, in 16 equal columns."""
    columns = [torch.tensor(row, device=device).reshape(-1, 1, 1).repeat(1, 1, 16) for row in values]
    lengths = [1] * len(values) if query_lengths is None else query_lengths
    starts = None
    if query_lengths is not None:
        starts = torch.tensor([0, *accumulate(query_lengths)], dtype=torch.int32, device=device)
    keys = [torch.randn_like(column) for column in columns]
    queries = torch.zeros(sum(lengths), 1, 16, device=device)
    return from_dense(queries, keys, columns, query_starts=starts, **options)


def means(result: Tensor) -> list[float]:
    """What attention made of a `zero_query`: its first column, checked to be equal to all others."""
    assert torch.equal(result, result[..., :1].expand_as(result))
    return result[:, 0, 0].tolist()


def relocated(
    problem: Problem, *, block_size: int | None = None, seed: int = 1, stale_entry: int = -1
) -> Problem:
    """The same problem with its K and V in other physical blocks (and of another block size, if given)."""
    return from_dense(
        problem.queries,
        problem.keys,
        problem.values,
        query_starts=problem.query_starts,
        block_size=problem.key_cache.shape[1] if block_size is None else block_size,
        scale=problem.scale,
        window=problem.window,
        softcap=problem.softcap,
        seed=seed,
        stale_entry=stale_entry,
    )


def subset(problem: Problem, rows: Sequence[int]) -> Problem:
    """The same problem for some of its sequences only, in the order given, in the same blocks."""
    ranges = [problem.query_ranges[row] for row in rows]
    queries = torch.cat([problem.queries[first:last] for first, last in ranges])
    starts = problem.query_starts
    if starts is not None:
        ends = [sum(last - first for first, last in ranges[: index + 1]) for index in range(len(ranges))]
        starts = torch.tensor([0, *ends], dtype=torch.int32, device=queries.device)
    return replace(
        problem,
        queries=queries,
        block_tables=problem.block_tables[list(rows)],
        context_lengths=problem.context_lengths[list(rows)],
        query_starts=starts,
        keys=[problem.keys[row] for row in rows],
        values=[problem.values[row] for row in rows],
    )


def chunk(problem: Problem, first: int, last: int) -> Problem:
    """Queries `first` to `last` - 1 of a whole prompt, with nothing after them in the cache."""
    device = problem.queries.device
    return from_dense(
        problem.queries[first:last],
        [problem.keys[0][:last]],
        [problem.values[0][:last]],
        query_starts=torch.tensor([0, last - first], dtype=torch.int32, device=device),
        scale=problem.scale,
        window=problem.window,
    )


def run(problem: Problem, decode: Callable[..., Tensor], prefill: Callable[..., Tensor]) -> Tensor:
    """Call `decode` or `prefill` (the two functions every attention backend exports) on a problem."""
    caches = (problem.queries, problem.key_cache, problem.value_cache)
    rows = (problem.block_tables, problem.context_lengths)
    if problem.query_starts is None:
        return decode(*caches, *rows, **problem.options)
    longest = max([last - first for first, last in problem.query_ranges], default=0)
    return prefill(*caches, *rows, problem.query_starts, max_query_length=longest, **problem.options)


def oracle(problem: Problem) -> Tensor:
    """Dense float64 attention, in the shape of `queries`: softmax(scale * Q K^T) V for each sequence."""
    result = torch.zeros(problem.queries.shape, dtype=torch.float64, device=problem.queries.device)
    for (first, last), keys, values in zip(problem.query_ranges, problem.keys, problem.values, strict=True):
        queries = problem.queries[first:last].double()
        group = queries.shape[1] // keys.shape[1]
        keys, values = (x.double().repeat_interleave(group, dim=1) for x in (keys, values))
        scores = torch.einsum("mhd,nhd->hmn", queries, keys) * problem.scale
        if problem.softcap is not None:
            scores = problem.softcap * torch.tanh(scores / problem.softcap)
        position = torch.arange(len(keys) - len(queries), len(keys), device=scores.device)[:, None]
        key = torch.arange(len(keys), device=scores.device)[None, :]
        visible = key <= position
        if problem.window is not None:
            visible &= key > position - problem.window
        weights = torch.softmax(scores.masked_fill(~visible, -math.inf), dim=-1).nan_to_num(0.0)
        result[first:last] = torch.einsum("hmn,nhd->mhd", weights, values)
    return result


def relative_error(result: Tensor, expected: Tensor) -> float:
    """Largest |result - expected| over the largest |expected| of the same token and head.

    NaN counts as infinite. Where the expected vector is zero, any other result is an infinite error.
    """
    difference = (result.double() - expected).abs().nan_to_num(math.inf)
    size = expected.abs().amax(dim=-1, keepdim=True).expand_as(difference)
    ratio = torch.where(difference == 0, 0.0, difference / size)
    return ratio.max().item() if ratio.numel() else 0.0


def assert_close(result: Tensor, expected: Tensor) -> None:
    """Fail unless `result` is within its dtype's allowed error of the float64 `expected`."""
    assert result.shape == expected.shape
    error = relative_error(result, expected)
    allowed = ALLOWED_ERROR[result.dtype]
    assert error <= allowed, f"largest relative error {error:.3g}, allowed {allowed:.3g} for {result.dtype}"
