"""Views: whatever strides a tensor has, each implementation gives the right answer or refuses it by name.

Between the elements of a view lie NaN, or ids of blocks that don't exist: who reads by the wrong stride finds
those.
"""

import math
from dataclasses import replace
from types import ModuleType

import pytest
import torch
from problems import Problem, assert_close, assert_same_answer, make_problem, oracle, run
from torch import Tensor

from minipaged.kernels import attention, attention_cpu
from minipaged.kernels.block_table import launch_slot_mapping, launch_write_kv, slot_mapping, write_kv

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ATTENTION = [pytest.param(attention, DEVICE, id="triton"), pytest.param(attention_cpu, "cpu", id="numba")]
MAPPINGS = [
    pytest.param(slot_mapping, "cpu", id="cpu"),
    pytest.param(launch_slot_mapping, DEVICE, id="triton"),
]
WRITES = [pytest.param(write_kv, "cpu", id="cpu"), pytest.param(launch_write_kv, DEVICE, id="triton")]
PATHS = pytest.mark.parametrize("query_lengths", [None, [3, 9, 1]], ids=["decode", "prefill"])


def placed(tensor: Tensor, strides: tuple[int, ...], offset: int = 1) -> Tensor:
    """The same values, in memory with these strides, `offset` elements in."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, strides, strict=True))
    poison = math.nan if tensor.is_floating_point() else 2**30
    memory = torch.full((offset + last + 1,), poison, dtype=tensor.dtype, device=tensor.device)
    view = memory.as_strided(tensor.shape, strides, offset)
    view.copy_(tensor)
    return view


def pool_views(key_cache: Tensor, value_cache: Tensor, order: str) -> tuple[Tensor, Tensor]:
    """The caches as layer 1 of 2 in a pool whose dimensions are ordered so.

    n: blocks, l: layers, v: K or V, b: slots of a block, k: KV heads, d: head_dim.
    """
    num_blocks, block_size, num_kv_heads, head_dim = key_cache.shape
    sizes = {"n": num_blocks, "l": 2, "v": 2, "b": block_size, "k": num_kv_heads, "d": head_dim}
    pool = key_cache.new_full([sizes[axis] for axis in order], math.nan)
    layer = pool.permute([order.index(axis) for axis in "nlvbkd"])[:, 1]
    layer[:, 0].copy_(key_cache)
    layer[:, 1].copy_(value_cache)
    return layer[:, 0], layer[:, 1]


ORDERS = {
    "blocks first": "nlvbkd",
    "layers first": "lvnbkd",
    "heads before slots": "nlvkbd",
    "heads first": "klvnbd",
    "slots first": "bnlvkd",
    "K and V of a token together": "nlbkvd",
}


def attend(kernels: ModuleType, problem: Problem) -> Tensor:
    return run(problem, kernels.decode_attention, kernels.prefill_attention)


def problem_for(query_lengths: list[int] | None, device: str, **options) -> Problem:
    return make_problem([5, 12, 3], query_lengths, head_dim=24, device=device, **options)


@pytest.mark.parametrize(("device", "roundings", "same"), [
    ("cpu", 0, True), ("cpu", 1, False), ("cuda", 1, True), ("cuda", 100, False),
])  # fmt: skip
def test_what_the_same_answer_means_where(device, roundings, same):
    answer = torch.ones(3)
    other = answer + roundings * torch.finfo(torch.float32).eps
    if same:
        assert_same_answer(answer, other, device)
        return
    with pytest.raises(AssertionError):
        assert_same_answer(answer, other, device)


# ---- attention -----------------------------------------------------------------------------------------

QUERIES = {
    "heads before tokens": lambda t, h, d: (d, t * d, 1),
    "a part of a fused projection": lambda t, h, d: (3 * h * d, d, 1),
    "every second token": lambda t, h, d: (2 * h * d, d, 1),
    "every third head": lambda t, h, d: (3 * h * d, 3 * d, 1),
    "padded heads": lambda t, h, d: (h * (d + 5), d + 5, 1),
}


@pytest.mark.parametrize(("kernels", "device"), ATTENTION)
@PATHS
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("layout", QUERIES)
def test_queries_of_any_layout(kernels, device, query_lengths, dtype, layout):
    problem = problem_for(query_lengths, device, dtype=dtype)
    queries = placed(problem.queries, QUERIES[layout](*problem.queries.shape))
    assert not queries.is_contiguous()
    result = attend(kernels, replace(problem, queries=queries))
    assert_close(result, oracle(problem))
    assert_same_answer(result, attend(kernels, problem))


@pytest.mark.parametrize(("kernels", "device"), ATTENTION)
@PATHS
@pytest.mark.parametrize("axis", [0, 1], ids=["one token", "one head"])
def test_queries_that_are_one_repeated(kernels, device, query_lengths, axis):
    problem = problem_for(query_lengths, device)
    queries = problem.queries.narrow(axis, 0, 1).expand_as(problem.queries)
    assert queries.stride(axis) == 0
    problem = replace(problem, queries=queries)
    assert_close(attend(kernels, problem), oracle(problem))


@pytest.mark.parametrize(("kernels", "device"), ATTENTION)
@PATHS
@pytest.mark.parametrize("order", ORDERS)
def test_caches_in_a_pool_of_any_order(kernels, device, query_lengths, order):
    problem = problem_for(query_lengths, device)
    keys, values = pool_views(problem.key_cache, problem.value_cache, ORDERS[order])
    result = attend(kernels, replace(problem, key_cache=keys, value_cache=values))
    assert_close(result, oracle(problem))
    mixed = replace(problem, value_cache=values)  # and keys as they were
    assert_same_answer(attend(kernels, mixed), result)


@pytest.mark.parametrize(("kernels", "device"), ATTENTION)
@PATHS
def test_a_cache_whose_heads_are_one_repeated(kernels, device, query_lengths):
    problem = problem_for(query_lengths, device)
    keys, values = (cache[:, :, :1].expand_as(cache) for cache in (problem.key_cache, problem.value_cache))
    shared = replace(
        problem,
        key_cache=keys,
        value_cache=values,
        keys=[rows[:, :1].expand_as(rows) for rows in problem.keys],
        values=[rows[:, :1].expand_as(rows) for rows in problem.values],
    )
    assert_close(attend(kernels, shared), oracle(shared))


@pytest.mark.parametrize(("kernels", "device"), ATTENTION)
@PATHS
def test_integers_of_any_layout(kernels, device, query_lengths):
    problem = problem_for(query_lengths, device)
    width = problem.block_tables.shape[1]
    strided = replace(
        problem,
        block_tables=placed(problem.block_tables, (3 * width + 1, 1)),
        context_lengths=placed(problem.context_lengths, (2,)),
        query_starts=None if query_lengths is None else placed(problem.query_starts, (5,)),
    )
    assert_same_answer(attend(kernels, strided), attend(kernels, problem))


@pytest.mark.parametrize(("kernels", "device"), ATTENTION)
@PATHS
def test_one_table_and_one_length_for_all(kernels, device, query_lengths):
    problem = problem_for(query_lengths, device)
    same = replace(
        problem,
        block_tables=problem.block_tables[1:2].expand_as(problem.block_tables),
        context_lengths=problem.context_lengths[1:2].expand_as(problem.context_lengths),
        keys=problem.keys[1:2] * 3,
        values=problem.values[1:2] * 3,
    )
    assert same.block_tables.stride(0) == same.context_lengths.stride(0) == 0
    assert_close(attend(kernels, same), oracle(same))


@pytest.mark.parametrize(("kernels", "device"), ATTENTION)
def test_sequences_without_queries_by_a_stride_of_0(kernels, device):
    problem = problem_for([0, 0, 0], device)
    starts = problem.query_starts[:1].expand_as(problem.query_starts)
    queries = torch.ones(2, *problem.queries.shape[1:], device=device)  # rows of no sequence
    assert not attend(kernels, replace(problem, queries=queries, query_starts=starts)).any()


@pytest.mark.parametrize(("kernels", "device"), ATTENTION)
@PATHS
def test_a_last_dimension_of_one_may_have_any_stride(kernels, device, query_lengths):
    problem = make_problem([3, 12, 3], query_lengths, head_dim=1, block_size=12, device=device)
    heads = problem.queries.shape[1]
    strided = replace(
        problem,
        queries=placed(problem.queries, (7 * heads, 7, 5)),
        key_cache=problem.key_cache.as_strided(
            problem.key_cache.shape, (*problem.key_cache.stride()[:3], 9), problem.key_cache.storage_offset()
        ),
        block_tables=placed(problem.block_tables[:, :1], (4, 3)),
    )
    assert_close(attend(kernels, strided), oracle(problem))


REFUSED = {
    "queries: stride 2": lambda p: dict(queries=placed(p.queries, (2 * p.queries[0].numel(), 48, 2))),
    "queries: stride 0": lambda p: dict(queries=p.queries[..., :1].expand_as(p.queries)),
    "key_cache: stride 2": lambda p: dict(
        key_cache=pool_views(p.key_cache, p.value_cache, "nlvbdk")[0],
    ),
    "value_cache: stride 2": lambda p: dict(
        value_cache=pool_views(p.key_cache, p.value_cache, "nlbkdv")[1],
    ),
    "block_tables: stride 2": lambda p: dict(block_tables=placed(p.block_tables, (20, 2))),
    "block_tables: stride 3": lambda p: dict(block_tables=p.block_tables.T.contiguous().T),
    "block_tables: stride 0": lambda p: dict(block_tables=p.block_tables[:, :1].expand_as(p.block_tables)),
}


@pytest.mark.parametrize(("kernels", "device"), ATTENTION)
@PATHS
@pytest.mark.parametrize("message", REFUSED)
def test_a_strided_last_dimension_is_refused(kernels, device, query_lengths, message):
    problem = problem_for(query_lengths, device)
    with pytest.raises(ValueError, match=f"{message} in the last dimension, must be 1"):
        attend(kernels, replace(problem, **REFUSED[message](problem)))


# ---- writing K and V -----------------------------------------------------------------------------------

TOKENS = {
    "parts of a fused projection": lambda t, h, d: (3 * h * d, d, 1),
    "heads before tokens": lambda t, h, d: (d, t * d, 1),
    "a strided last dimension": lambda t, h, d: (2 * h * d, 2 * d, 2),
    "head_dim before heads": lambda t, h, d: (h * d, 1, h),
    "every second token": lambda t, h, d: (2 * h * d, d, 1),
}
SLOTS = [7, 0, -1, 11]


def written(keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """What caches of 4 blocks of 3 slots, full of NaN, hold once the tokens are in SLOTS."""
    caches = keys.new_full((2, 4, 3, *keys.shape[1:]), math.nan)
    for token, slot in enumerate(SLOTS):
        if slot >= 0:
            caches[0, slot // 3, slot % 3] = keys[token]
            caches[1, slot // 3, slot % 3] = values[token]
    return caches[0], caches[1]


def check_write(write, keys: Tensor, values: Tensor, order: str = "nlvbkd", slots: Tensor | None = None):
    nothing = keys.new_full((4, 3, *keys.shape[1:]), math.nan)
    caches = pool_views(nothing, nothing, order)
    write(keys, values, *caches, torch.tensor(SLOTS, device=keys.device) if slots is None else slots)
    for cache, expected in zip(caches, written(keys, values), strict=True):
        torch.testing.assert_close(cache, expected, rtol=0, atol=0, equal_nan=True)


def tokens(device: str) -> tuple[Tensor, Tensor]:
    keys, values = torch.randn(2, len(SLOTS), 3, 5, device=device)
    return keys, values


@pytest.mark.parametrize(("write", "device"), WRITES)
@pytest.mark.parametrize("layout", TOKENS)
def test_keys_and_values_of_any_layout(write, device, layout):
    keys, values = tokens(device)
    strides = TOKENS[layout](*keys.shape)
    check_write(write, placed(keys, strides), placed(values, strides))
    check_write(write, placed(keys, strides), values)
    check_write(write, keys, placed(values, strides))


@pytest.mark.parametrize(("write", "device"), WRITES)
def test_keys_and_values_unbound_from_one_tensor(write, device):
    together = torch.randn(len(SLOTS), 3, 3, 5, device=device)
    _, keys, values = together.unbind(1)
    check_write(write, keys, values)


@pytest.mark.parametrize(("write", "device"), WRITES)
@pytest.mark.parametrize("axis", [0, 1, 2], ids=["one token", "one head", "one number"])
def test_keys_and_values_that_are_one_repeated(write, device, axis):
    keys, values = (part.narrow(axis, 0, 1).expand_as(part) for part in tokens(device))
    assert keys.stride(axis) == 0
    check_write(write, keys, values)


@pytest.mark.parametrize(("write", "device"), WRITES)
@pytest.mark.parametrize("order", [*ORDERS.values(), "nlvbdk", "dlvnbk"])
def test_writes_into_a_pool_of_any_order(write, device, order):
    check_write(write, *tokens(device), order=order)


@pytest.mark.parametrize(("write", "device"), WRITES)
def test_slots_of_any_layout(write, device):
    check_write(write, *tokens(device), slots=placed(torch.tensor(SLOTS, device=device), (3,)))
    caches = torch.full((2, 4, 3, 3, 5), math.nan, device=device)
    skipped = torch.tensor([-1], device=device).expand(len(SLOTS))
    write(*tokens(device), *caches, skipped)
    assert caches.isnan().all()


# ---- mapping positions to slots ------------------------------------------------------------------------

TABLES = {
    "every second column": lambda rows, width: (2 * width, 2),
    "columns first": lambda rows, width: (1, rows),
    "padded rows": lambda rows, width: (width + 3, 1),
}


def check_mapping(mapping, table: Tensor, positions: Tensor, rows: Tensor) -> None:
    expected = [
        int(table[row, position // 4]) * 4 + position % 4
        for row, position in zip(rows.tolist(), positions.tolist(), strict=True)
    ]
    assert mapping(table, positions, rows, 4).tolist() == expected


@pytest.mark.parametrize(("mapping", "device"), MAPPINGS)
@pytest.mark.parametrize("layout", TABLES)
def test_tables_of_any_layout(mapping, device, layout):
    table = torch.tensor([[2, 0, 5], [7, 3, 1]], dtype=torch.int32, device=device)
    positions = torch.tensor([0, 5, 11, 8, 3], device=device)
    rows = torch.tensor([0, 1, 0, 1, 1], device=device)
    check_mapping(mapping, placed(table, TABLES[layout](*table.shape)), positions, rows)


@pytest.mark.parametrize(("mapping", "device"), MAPPINGS)
def test_positions_and_rows_of_any_layout(mapping, device):
    table = torch.tensor([[2, 0, 5], [7, 3, 1]], dtype=torch.int32, device=device)
    positions = placed(torch.tensor([0, 5, 11, 8, 3], device=device), (2,))
    rows = placed(torch.tensor([0, 1, 0, 1, 1], dtype=torch.int32, device=device), (3,))
    check_mapping(mapping, table, positions, rows)


@pytest.mark.parametrize(("mapping", "device"), MAPPINGS)
def test_a_table_a_position_and_a_row_that_are_one_repeated(mapping, device):
    table = torch.tensor([[2, 0, 5]], dtype=torch.int32, device=device).expand(2, 3)
    positions = torch.tensor([0, 5, 11], device=device)
    rows = torch.tensor([0, 1, 1], device=device)
    check_mapping(mapping, table, positions, rows)
    check_mapping(mapping, table, positions, rows[1:2].expand(3))
    check_mapping(mapping, table, positions[1:2].expand(3), rows)
    check_mapping(mapping, table[:, 2:].expand(2, 3), positions, rows)
