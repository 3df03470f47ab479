"""Both implementations of paged attention against dense float64, and the answers that small inputs must give.

Every test runs on the Triton kernels (compiled on a GPU, else interpreted) and on the CPU's Numba ones.
"""

import math
from dataclasses import replace
from types import ModuleType

import pytest
import torch
from problems import (
    assert_close,
    assert_same_answer,
    chunk,
    from_dense,
    make_problem,
    means,
    oracle,
    relocated,
    run,
    subset,
    zero_query,
)
from torch import Tensor

from minipaged.kernels import attention, attention_cpu, block_table

# A masked lane that computes inf - inf or 0 / 0 is a fault even where its result is thrown away.
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

HALF, SINGLE, DOUBLE = torch.float16, torch.float32, torch.float64
KERNELS: dict[str, ModuleType] = {"triton": attention, "numba": attention_cpu}
under_test = attention


@pytest.fixture(params=KERNELS, autouse=True)
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test once on each implementation."""
    monkeypatch.setitem(globals(), "under_test", KERNELS[request.param])


def device() -> str:
    """Where the implementation under test keeps its tensors."""
    return "cuda" if under_test is attention and torch.cuda.is_available() else "cpu"


def attend(problem) -> Tensor:
    return run(problem, under_test.decode_attention, under_test.prefill_attention)


def edges(block_size: int) -> list[int]:
    """Lengths on both sides of a block's end, and an empty context."""
    return sorted({0, 1, block_size - 1, block_size, block_size + 1, 2 * block_size})


# Every head_dim, group, block size, dtype and option occurs; not every combination of them.
CASES = [
    dict(head_dim=16, num_heads=2, num_kv_heads=2, block_size=1, dtype=SINGLE, window=2),
    dict(head_dim=64, num_heads=4, num_kv_heads=2, block_size=3, dtype=HALF),
    dict(head_dim=80, num_heads=6, num_kv_heads=2, block_size=12, dtype=SINGLE, softcap=3.0),
    dict(head_dim=96, num_heads=7, num_kv_heads=1, block_size=16, dtype=SINGLE, window=5),
    dict(head_dim=128, num_heads=8, num_kv_heads=1, block_size=64, dtype=DOUBLE, window=33, softcap=0.7),
    dict(head_dim=256, num_heads=3, num_kv_heads=1, block_size=5, dtype=HALF, scale=0.3),
    dict(head_dim=24, num_heads=71, num_kv_heads=1, block_size=7, dtype=SINGLE),
]


def name_of(case: dict) -> str:
    group = case["num_heads"] // case["num_kv_heads"]
    return f"dim{case['head_dim']}-group{group}-block{case['block_size']}-{str(case['dtype'])[6:]}"


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_decode_equals_dense_at_every_edge_of_a_block(case):
    problem = make_problem(edges(case["block_size"]), **case, device=device())
    assert_close(attend(problem), oracle(problem))


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_prefill_equals_dense_at_every_edge_of_a_block(case):
    lengths = edges(case["block_size"])
    # Whole prompts, chunks of 2, single tokens and nothing, in turn.
    queries = [
        (length, min(2, length), min(1, length), 0)[row % 4] for row, length in enumerate(reversed(lengths))
    ]
    problem = make_problem(lengths[::-1], queries, **case, device=device())
    assert_close(attend(problem), oracle(problem))


@pytest.mark.parametrize("dtype", [HALF, SINGLE, DOUBLE])
def test_decode_equals_dense_at_the_edges_of_splits_and_tiles(dtype):
    split = 256  # of both implementations
    lengths = [31, 32, 33, 64, 65, split - 1, split, split + 1, 2 * split + 40]
    problem = make_problem(lengths, num_heads=2, num_kv_heads=1, block_size=16, dtype=dtype, device=device())
    assert_close(attend(problem), oracle(problem))


@pytest.mark.parametrize("dtype", [HALF, SINGLE, DOUBLE])
def test_prefill_equals_dense_over_several_tiles(dtype):
    problem = make_problem(
        [129, 70, 64], [129, 33, 1], num_heads=3, num_kv_heads=1, block_size=12, dtype=dtype, device=device()
    )
    assert_close(attend(problem), oracle(problem))


@pytest.mark.parametrize("window", [1, 255, 256, 257, 300])
def test_a_window_may_start_in_any_split(window):
    problem = make_problem([1, 300, 513, 600], num_heads=1, num_kv_heads=1, window=window, device=device())
    assert_close(attend(problem), oracle(problem))


@pytest.mark.parametrize("query_lengths", [None, [1]], ids=["decode", "prefill"])
def test_slots_that_hold_nan_change_nothing(query_lengths):
    problem = zero_query([[1.0, 2.0, 6.0]], query_lengths, device=device())
    assert problem.value_cache.isnan().any()
    assert means(attend(problem)) == [3.0]


@pytest.mark.parametrize("query_lengths", [None, [3]], ids=["decode", "prefill"])
def test_nan_in_the_last_slot_and_in_the_blocks_that_pad_the_table(query_lengths):
    keys, values = torch.full((2, 3, 4, 1, 16), math.nan, device=device())
    keys[1, :3] = torch.randn(3, 1, 16)
    values[1, :3] = torch.tensor([1.0, 2.0, 6.0]).reshape(3, 1, 1)
    problem = zero_query([[1.0, 2.0, 6.0]], query_lengths, device=device())
    table = torch.tensor([[1, 0, 2, 0]], dtype=torch.int32, device=device())
    padded = replace(problem, key_cache=keys, value_cache=values, block_tables=table)
    assert means(attend(padded)) == ([3.0] if query_lengths is None else [1.0, 1.5, 3.0])


@pytest.mark.parametrize("query_lengths", [None, [2, 3, 4]], ids=["decode", "prefill"])
def test_a_block_may_be_larger_than_any_tile(query_lengths):
    problem = make_problem(
        [543, 544, 545], query_lengths, num_heads=2, num_kv_heads=1, block_size=544, device=device()
    )
    assert_close(attend(problem), oracle(problem))


def test_every_row_merges_its_own_splits():
    # One split of 256 tokens, two, three and eight, and none; the mean of 0 to n - 1 is (n - 1) / 2.
    lengths = [33, 0, 2048, 1, 257, 600]
    problem = zero_query([[float(j) for j in range(n)] for n in lengths], block_size=16, device=device())
    expected = [16.0, 0.0, 1023.5, 0.0, 128.0, 299.5]
    assert means(attend(problem)) == pytest.approx(expected, rel=1e-6)


def test_a_sequence_that_grows_token_by_token():
    # Blocks of 4 in the order 2, 0, 1: each token's value is its position, so the mean is (n - 1) / 2.
    keys, values = torch.full((2, 3, 4, 1, 16), math.nan, device=device())
    table = torch.full((1, 3), -1, dtype=torch.int32, device=device())
    query = torch.zeros(1, 1, 16, device=device())
    on_host = under_test is attention_cpu
    slot_mapping = block_table.slot_mapping if on_host else block_table.launch_slot_mapping
    write_kv = block_table.write_kv if on_host else block_table.launch_write_kv
    for position in range(9):
        if position % 4 == 0:
            table[0, position // 4] = (2, 0, 1)[position // 4]
        here, row = torch.tensor([[position], [0]], device=device())
        slot = slot_mapping(table, here, row, 4)
        write_kv(query + 1, query + position, keys, values, slot)
        rows = (table, torch.tensor([position + 1], dtype=torch.int32, device=device()))
        decoded = under_test.decode_attention(query, keys, values, *rows, scale=1.0)
        assert means(decoded) == pytest.approx([position / 2], abs=1e-6)
    starts = torch.tensor([0, 9], dtype=torch.int32, device=device())
    filled = under_test.prefill_attention(query.expand(9, 1, 16), keys, values, *rows, starts, scale=1.0)
    assert means(filled) == pytest.approx([n / 2 for n in range(9)], abs=1e-6)


@pytest.mark.parametrize("query_lengths", [None, [2]], ids=["decode", "prefill"])
def test_what_a_larger_batch_left_in_the_same_tensors_changes_nothing(query_lengths):
    problem = make_problem([5], query_lengths, device=device())
    # Of a batch of three: longer tables of blocks that hold NaN, or that are long gone.
    tables = torch.full((3, 8), 77, dtype=torch.int32, device=device())
    lengths = torch.full((3,), 32, dtype=torch.int32, device=device())
    tables[0, :2], lengths[:1] = problem.block_tables[0, :2], problem.context_lengths
    reused = replace(problem, block_tables=tables[:1], context_lengths=lengths[:1])
    if query_lengths is not None:
        starts = torch.tensor([0, 2, 9, 12], dtype=torch.int32, device=device())
        reused = replace(reused, query_starts=starts[:2])
    assert torch.equal(attend(reused), attend(problem))


@pytest.mark.parametrize("query_lengths", [None, [1]], ids=["decode", "prefill"])
def test_the_last_column_of_an_odd_head_dim_counts_and_the_scale_is_the_callers(query_lengths):
    unit = torch.zeros(1, 1, 80, device=device())
    unit[..., 79] = 1.0
    keys = torch.cat([unit, torch.zeros_like(unit)])
    values = torch.tensor([1.0, 0.0], device=device()).reshape(2, 1, 1).repeat(1, 1, 80)
    starts = None if query_lengths is None else torch.tensor([0, 1], dtype=torch.int32, device=device())
    problem = from_dense(10 * unit, [keys], [values], query_starts=starts, scale=80**-0.5)
    result = attend(problem)
    # 1 / (1 + exp(-10 / sqrt(80))); 0.5 had lost column 79, 0.7076 had scaled by the padded width of 128.
    assert result.flatten().tolist() == pytest.approx([0.7536] * 80, abs=1e-4)


@pytest.mark.parametrize("query_lengths", [None, [3]], ids=["decode", "prefill"])
def test_a_padded_group_does_not_write_into_its_neighbour(query_lengths):
    problem = make_problem(
        [3], query_lengths, num_heads=14, num_kv_heads=2, head_dim=16, dtype=SINGLE, device=device()
    )
    values = torch.tensor([1.0, 100.0], device=device()).reshape(1, 2, 1).repeat(3, 1, 16)
    problem = relocated(replace(problem, queries=torch.zeros_like(problem.queries), values=[values]))
    result = attend(problem)
    assert torch.equal(result[:, :7], torch.ones_like(result[:, :7]))
    assert torch.equal(result[:, 7:], torch.full_like(result[:, 7:], 100.0))


def test_a_chunk_sees_all_that_was_cached_before_it():
    assert means(attend(zero_query([[0.0, 1.0, 2.0, 3.0, 4.0]], [2], device=device()))) == [1.5, 2.0]


def test_a_window_counts_the_query_itself_on_both_paths():
    count_up = [float(position) for position in range(10)]
    assert means(attend(zero_query([count_up], window=4, device=device()))) == [7.5]
    rows = means(attend(zero_query([count_up], [10], window=4, device=device())))
    assert rows == [0.0, 0.5, 1.0, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5]


def test_nothing_before_the_window_is_read():
    problem = zero_query([[float(position) for position in range(10)]], window=2, device=device())
    passed = problem.block_tables[0, :2].long()  # positions 0 to 7; the query at 9 sees 8 and 9
    problem.key_cache[passed] = math.nan
    problem.value_cache[passed] = math.nan
    assert means(attend(problem)) == [8.5]


def test_an_empty_row_between_others_with_as_many_queries():
    problem = make_problem([3, 0, 5], [1, 0, 1], device=device())
    result = attend(problem)
    assert torch.equal(result, attend(subset(problem, [0, 2])))
    assert_close(result, oracle(problem))


def test_an_empty_row_gives_zeros_and_leaves_the_others_as_they_are():
    decode = make_problem([3, 0, 5], device=device())
    prefill = make_problem([3, 0, 5, 0], [1, 0, 1, 1], device=device())  # the last has a query and no context
    for problem, zero, others in ((decode, 1, [0, 2]), (prefill, 2, [0, 2])):
        result = attend(problem)
        assert not result[zero].any()
        kept = [row for row in range(len(result)) if row != zero]
        assert torch.equal(result[kept], attend(subset(problem, others)))


@pytest.mark.parametrize("query_lengths", [None, [1, 1], [0, 0]], ids=["decode", "prefill", "no queries"])
def test_a_batch_of_empty_rows(query_lengths):
    result = attend(make_problem([0, 0], query_lengths, device=device()))
    assert not result.any()


def test_an_empty_batch():
    problem = make_problem([4], device=device())
    nothing = replace(
        problem,
        queries=problem.queries[:0],
        block_tables=problem.block_tables[:0],
        context_lengths=problem.context_lengths[:0],
        keys=[],
        values=[],
    )
    assert attend(nothing).shape == (0, 4, 16)
    starts = torch.zeros(1, dtype=torch.int32, device=device())
    assert attend(replace(nothing, query_starts=starts)).shape == (0, 4, 16)


@pytest.mark.parametrize("query_lengths", [None, [5, 1]], ids=["decode", "prefill"])
def test_table_entries_past_the_context_are_never_followed(query_lengths):
    problem = make_problem([5, 9], query_lengths, device=device())
    expected = attend(problem)
    for stale in (3, 2**31 - 1):
        assert torch.equal(attend(relocated(problem, seed=0, stale_entry=stale)), expected)


@pytest.mark.parametrize("query_lengths", [None, [7, 20, 60]], ids=["decode", "prefill"])
def test_moving_blocks_changes_no_bit(query_lengths):
    problem = make_problem([7, 20, 300], query_lengths, window=270, device=device())
    result = attend(problem)
    for seed in (5, 6):
        moved = relocated(problem, seed=seed)
        assert not torch.equal(moved.block_tables, problem.block_tables)
        assert torch.equal(attend(moved), result)


@pytest.mark.parametrize("query_lengths", [None, [7, 2, 40]], ids=["decode", "prefill"])
def test_the_company_of_a_row_changes_no_bit(query_lengths):
    problem = make_problem([7, 20, 300], query_lengths, device=device())
    result = attend(problem)
    for row, (first, last) in enumerate(problem.query_ranges):
        alone = subset(problem, [row])
        # A wider table means a larger grid and more room for splits, not other splits.
        alone = replace(alone, block_tables=torch.cat([alone.block_tables] * 3, dim=1))
        assert torch.equal(attend(alone), result[first:last])
    swapped = attend(subset(problem, [2, 0, 1]))
    rows = [row for index in (2, 0, 1) for row in range(*problem.query_ranges[index])]
    assert torch.equal(swapped, result[rows])


def test_a_row_that_belongs_to_no_sequence_gives_zeros():
    problem = make_problem([5], [2], device=device())
    padded = torch.cat([problem.queries, torch.ones_like(problem.queries)])
    result = attend(replace(problem, queries=padded))
    assert torch.equal(result[:2], attend(problem))
    assert not result[2:].any()


@pytest.mark.parametrize("query_lengths", [None, [3, 5]], ids=["decode", "prefill"])
def test_strided_inputs_give_the_same_answer(query_lengths):
    problem = make_problem([3, 9], query_lengths, device=device())
    # As Hugging Face models hand them over: [heads, tokens, head_dim], transposed.
    queries = problem.queries.transpose(0, 1).contiguous().transpose(0, 1)
    lengths = torch.stack([problem.context_lengths] * 2, dim=1)[:, 0]
    caches = [
        cache.transpose(1, 2).contiguous().transpose(1, 2)
        for cache in (problem.key_cache, problem.value_cache)
    ]
    tables = torch.cat([problem.block_tables] * 2, dim=1)[:, : problem.block_tables.shape[1]]
    strided = replace(
        problem,
        queries=queries,
        key_cache=caches[0],
        value_cache=caches[1].contiguous(),
        block_tables=tables,
        context_lengths=lengths,
    )
    assert_same_answer(attend(strided), attend(problem))


BAD = {
    "a cache of another dtype": (
        TypeError,
        "value_cache: dtype",
        lambda p: dict(value_cache=p.value_cache.double()),
    ),
    "a dtype without kernels": (TypeError, "queries: dtype", lambda p: dict(queries=p.queries.int())),
    "queries without heads": (ValueError, "queries: shape", lambda p: dict(queries=p.queries[0])),
    "another head_dim": (ValueError, "key_cache: shape", lambda p: dict(queries=p.queries[..., :8])),
    "caches of two shapes": (ValueError, "value_cache: shape", lambda p: dict(value_cache=p.value_cache[1:])),
    "heads that don't divide": (ValueError, "queries: 3 heads", lambda p: dict(queries=p.queries[:, :3])),
    "one row too few": (ValueError, "queries: 1 rows", lambda p: dict(queries=p.queries[:1])),
    "64-bit tables": (TypeError, "block_tables", lambda p: dict(block_tables=p.block_tables.long())),
    "64-bit lengths": (
        TypeError,
        "context_lengths",
        lambda p: dict(context_lengths=p.context_lengths.long()),
    ),
    "lengths of another batch": (ValueError, "shapes", lambda p: dict(context_lengths=p.context_lengths[:1])),
    "a strided head": (
        ValueError,
        "queries: stride 2",
        lambda p: dict(queries=p.queries.repeat(1, 1, 2)[..., ::2]),
    ),
    "a window of 0": (ValueError, "window: 0", lambda p: dict(window=0)),
    "a soft cap of 0": (ValueError, "softcap: 0", lambda p: dict(softcap=0.0)),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_argument_is_named(kind):
    error, message, change = BAD[kind]
    problem = make_problem([5, 6], device=device())
    with pytest.raises(error, match=message):
        attend(replace(problem, **change(problem)))


BAD_VALUES = {
    "a length past the table": (
        "context_lengths: 99",
        lambda p: dict(context_lengths=p.context_lengths + 94),
    ),
    "a length below 0": ("context_lengths: -1", lambda p: dict(context_lengths=p.context_lengths - 6)),
    "a block below 0": ("block_tables: block -1", lambda p: dict(block_tables=p.block_tables * 0 - 1)),
    "a block past the pool": ("block_tables: block 77", lambda p: dict(block_tables=p.block_tables * 0 + 77)),
}


@pytest.mark.parametrize("kind", BAD_VALUES)
def test_a_value_that_leads_out_of_the_pool_is_named(kind):
    if device() == "cuda":
        pytest.skip("on a GPU nobody waits for values: only the CPU's launches look at them")
    message, change = BAD_VALUES[kind]
    problem = make_problem([5, 6])
    with pytest.raises(ValueError, match=message):
        attend(replace(problem, **change(problem)))


@pytest.mark.parametrize("window", [8, 2**31, 2**40])
def test_a_window_larger_than_any_context_hides_nothing(window):
    for lengths in (None, [3, 6]):
        problem = make_problem([5, 6], lengths, window=window, device=device())
        assert_same_answer(attend(problem), attend(replace(problem, window=None)))


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(0, 0, 16), (4, 0, 16), (4, 2, 0)])
def test_nothing_to_attend_with_is_named(heads, kv_heads, head_dim):
    queries = torch.zeros(1, heads, head_dim, device=device())
    cache = torch.zeros(1, 4, kv_heads, head_dim, device=device())
    problem = make_problem([1], device=device())
    with pytest.raises(ValueError, match="heads and head_dim must be at least 1"):
        attend(replace(problem, queries=queries, key_cache=cache, value_cache=cache))


def test_bad_query_starts_are_named():
    problem = make_problem([5, 6], [2, 3], device=device())
    starts = problem.query_starts
    with pytest.raises(TypeError, match="query_starts: dtype"):
        attend(replace(problem, query_starts=starts.long()))
    with pytest.raises(ValueError, match="query_starts: shape"):
        attend(replace(problem, query_starts=torch.cat([starts, starts])))
    if device() == "cpu":
        rows = (problem.queries, problem.key_cache, problem.value_cache, problem.block_tables)
        with pytest.raises(ValueError, match="max_query_length: 2, but a sequence has 3 rows"):
            under_test.prefill_attention(
                *rows, problem.context_lengths, starts, scale=1.0, max_query_length=2
            )
        with pytest.raises(ValueError, match="query_starts: must rise"):
            under_test.prefill_attention(*rows, problem.context_lengths, starts + 1, scale=1.0)


@pytest.mark.parametrize("query_lengths", [None, [33, 5, 1]], ids=["decode", "prefill"])
def test_bfloat16_equals_dense(query_lengths):
    if under_test is attention and device() == "cpu":
        pytest.skip("no CUDA device, and Triton's interpreter has no bfloat16")
    problem = make_problem(
        [33, 300, 64],
        query_lengths,
        num_heads=14,
        head_dim=80,
        block_size=16,
        dtype=torch.bfloat16,
        device=device(),
    )
    assert_close(attend(problem), oracle(problem))


def test_a_prompt_in_chunks_equals_the_whole():
    problem = make_problem([90], [90], num_heads=2, window=50, device=device())
    whole = attend(problem)
    for first, last in ((0, 1), (1, 40), (40, 83), (83, 90)):
        assert_close(attend(chunk(problem, first, last)), whole[first:last])
