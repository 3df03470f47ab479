"""The Triton attention kernels against dense float64, and the exact answers that small inputs must give.

Run as a script, this file compiles every Triton kernel for GPUs that need not be here.
"""

import math
import mmap
import os
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
import triton
from problems import assert_close, from_dense, make_problem, oracle, relocated, run, subset
from torch import Tensor

from minipaged.kernels import attention, block_table
from minipaged.kernels.attention import decode_attention, prefill_attention

# A masked lane that computes inf - inf or 0 / 0 is a fault even where its result is thrown away.
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF, SINGLE, DOUBLE = torch.float16, torch.float32, torch.float64


def attend(problem) -> Tensor:
    return run(problem, decode_attention, prefill_attention)


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
    problem = make_problem(edges(case["block_size"]), **case, device=DEVICE)
    assert_close(attend(problem), oracle(problem))


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_prefill_equals_dense_at_every_edge_of_a_block(case):
    lengths = edges(case["block_size"])
    # Whole prompts, chunks of 2, single tokens and nothing, in turn.
    queries = [
        (length, min(2, length), min(1, length), 0)[row % 4] for row, length in enumerate(reversed(lengths))
    ]
    problem = make_problem(lengths[::-1], queries, **case, device=DEVICE)
    assert_close(attend(problem), oracle(problem))


@pytest.mark.parametrize("dtype", [HALF, SINGLE, DOUBLE])
def test_decode_equals_dense_at_the_edges_of_splits_and_tiles(dtype):
    split = attention.SPLIT_LENGTH
    lengths = [31, 32, 33, 64, 65, split - 1, split, split + 1, 2 * split + 40]
    problem = make_problem(lengths, num_heads=2, num_kv_heads=1, block_size=16, dtype=dtype, device=DEVICE)
    assert_close(attend(problem), oracle(problem))


@pytest.mark.parametrize("dtype", [HALF, SINGLE, DOUBLE])
def test_prefill_equals_dense_over_several_tiles(dtype):
    problem = make_problem(
        [129, 70, 64], [129, 33, 1], num_heads=3, num_kv_heads=1, block_size=12, dtype=dtype, device=DEVICE
    )
    assert_close(attend(problem), oracle(problem))


@pytest.mark.parametrize("window", [1, 255, 256, 257, 300])
def test_a_window_may_start_in_any_split(window):
    problem = make_problem([1, 300, 513, 600], num_heads=1, num_kv_heads=1, window=window, device=DEVICE)
    assert_close(attend(problem), oracle(problem))


def zero_query(values: list[list[float]], query_lengths: list[int] | None = None, **options):
    """Queries of 0 weigh all keys alike, so a row's answer is the mean of the values that it sees."""
    columns = [
        torch.tensor(row, dtype=SINGLE, device=DEVICE).reshape(-1, 1, 1).repeat(1, 1, 16) for row in values
    ]
    lengths = [1] * len(values) if query_lengths is None else query_lengths
    starts = None
    if query_lengths is not None:
        ends = np.cumsum([0, *query_lengths])
        starts = torch.tensor(ends, dtype=torch.int32, device=DEVICE)
    keys = [torch.randn_like(column) for column in columns]
    queries = torch.zeros(sum(lengths), 1, 16, device=DEVICE)
    return from_dense(queries, keys, columns, query_starts=starts, **options)


def means(problem) -> list[float]:
    """The first column of the answer, checked to be equal in all columns."""
    result = attend(problem)
    assert torch.equal(result, result[..., :1].expand_as(result))
    return result[:, 0, 0].tolist()


@pytest.mark.parametrize("query_lengths", [None, [1]], ids=["decode", "prefill"])
def test_slots_that_hold_nan_change_nothing(query_lengths):
    problem = zero_query([[1.0, 2.0, 6.0]], query_lengths)
    assert problem.value_cache.isnan().any()
    assert means(problem) == [3.0]


@pytest.mark.parametrize("query_lengths", [None, [1]], ids=["decode", "prefill"])
def test_the_last_column_of_an_odd_head_dim_counts_and_the_scale_is_the_callers(query_lengths):
    unit = torch.zeros(1, 1, 80, device=DEVICE)
    unit[..., 79] = 1.0
    keys = torch.cat([unit, torch.zeros_like(unit)])
    values = torch.tensor([1.0, 0.0], device=DEVICE).reshape(2, 1, 1).repeat(1, 1, 80)
    starts = None if query_lengths is None else torch.tensor([0, 1], dtype=torch.int32, device=DEVICE)
    problem = from_dense(10 * unit, [keys], [values], query_starts=starts, scale=80**-0.5)
    result = attend(problem)
    # 1 / (1 + exp(-10 / sqrt(80))); 0.5 had lost column 79, 0.7076 had scaled by the padded width of 128.
    assert result.flatten().tolist() == pytest.approx([0.7536] * 80, abs=1e-4)


@pytest.mark.parametrize("query_lengths", [None, [3]], ids=["decode", "prefill"])
def test_a_padded_group_does_not_write_into_its_neighbour(query_lengths):
    problem = make_problem(
        [3], query_lengths, num_heads=14, num_kv_heads=2, head_dim=16, dtype=SINGLE, device=DEVICE
    )
    values = torch.tensor([1.0, 100.0], device=DEVICE).reshape(1, 2, 1).repeat(3, 1, 16)
    problem = relocated(replace(problem, queries=torch.zeros_like(problem.queries), values=[values]))
    result = attend(problem)
    assert torch.equal(result[:, :7], torch.ones_like(result[:, :7]))
    assert torch.equal(result[:, 7:], torch.full_like(result[:, 7:], 100.0))


def test_a_chunk_sees_all_that_was_cached_before_it():
    assert means(zero_query([[0.0, 1.0, 2.0, 3.0, 4.0]], [2])) == [1.5, 2.0]


def test_a_window_counts_the_query_itself_on_both_paths():
    count_up = [float(position) for position in range(10)]
    assert means(zero_query([count_up], window=4)) == [7.5]
    rows = means(zero_query([count_up], [10], window=4))
    assert rows == [0.0, 0.5, 1.0, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5]


def test_nothing_before_the_window_is_read():
    problem = zero_query([[float(position) for position in range(10)]], window=2)
    passed = problem.block_tables[0, :2].long()  # positions 0 to 7; the query at 9 sees 8 and 9
    problem.key_cache[passed] = math.nan
    problem.value_cache[passed] = math.nan
    assert means(problem) == [8.5]


@pytest.mark.parametrize("split_length", [48, 32, 16, 5])
def test_splits_merge_to_the_same_mean_for_every_row(split_length, monkeypatch):
    # 33 tokens make 1, 2, 3 and 7 splits, and the row of 1 token leaves all but its first one empty.
    monkeypatch.setattr(attention, "SPLIT_LENGTH", split_length)
    problem = zero_query([[0.0], [float(position) for position in range(33)], []])
    assert means(problem) == pytest.approx([0.0, 16.0, 0.0], abs=1e-5)


def test_more_splits_than_the_merge_takes_at_once(monkeypatch):
    monkeypatch.setattr(attention, "SPLIT_LENGTH", 4)
    problem = make_problem([70, 3, 100, 33], num_heads=8, num_kv_heads=1, dtype=DOUBLE, device=DEVICE)
    assert_close(attend(problem), oracle(problem))


def test_an_empty_row_gives_zeros_and_leaves_the_others_as_they_are():
    decode = make_problem([3, 0, 5], device=DEVICE)
    prefill = make_problem([3, 0, 5, 0], [1, 0, 1, 1], device=DEVICE)  # the last has a query and no context
    for problem, zero, others in ((decode, 1, [0, 2]), (prefill, 2, [0, 2])):
        result = attend(problem)
        assert not result[zero].any()
        kept = [row for row in range(len(result)) if row != zero]
        assert torch.equal(result[kept], attend(subset(problem, others)))


@pytest.mark.parametrize("query_lengths", [None, [1, 1], [0, 0]], ids=["decode", "prefill", "no queries"])
def test_a_batch_of_empty_rows(query_lengths):
    result = attend(make_problem([0, 0], query_lengths, device=DEVICE))
    assert not result.any()


def test_an_empty_batch():
    problem = make_problem([4], device=DEVICE)
    nothing = replace(
        problem,
        queries=problem.queries[:0],
        block_tables=problem.block_tables[:0],
        context_lengths=problem.context_lengths[:0],
        keys=[],
        values=[],
    )
    assert attend(nothing).shape == (0, 4, 16)
    starts = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    assert attend(replace(nothing, query_starts=starts)).shape == (0, 4, 16)


@pytest.mark.parametrize("query_lengths", [None, [5, 1]], ids=["decode", "prefill"])
def test_table_entries_past_the_context_are_never_followed(query_lengths):
    problem = make_problem([5, 9], query_lengths, device=DEVICE)
    expected = attend(problem)
    for stale in (3, 2**31 - 1):
        assert torch.equal(attend(relocated(problem, seed=0, stale_entry=stale)), expected)


@pytest.mark.parametrize("query_lengths", [None, [7, 20, 60]], ids=["decode", "prefill"])
def test_moving_blocks_changes_no_bit(query_lengths):
    problem = make_problem([7, 20, 300], query_lengths, window=270, device=DEVICE)
    result = attend(problem)
    for seed in (5, 6):
        moved = relocated(problem, seed=seed)
        assert not torch.equal(moved.block_tables, problem.block_tables)
        assert torch.equal(attend(moved), result)


@pytest.mark.parametrize("query_lengths", [None, [7, 2, 40]], ids=["decode", "prefill"])
def test_the_company_of_a_row_changes_no_bit(query_lengths):
    problem = make_problem([7, 20, 300], query_lengths, device=DEVICE)
    result = attend(problem)
    for row, (first, last) in enumerate(problem.query_ranges):
        alone = subset(problem, [row])
        # A wider table means a larger grid and more room for splits, not other splits.
        alone = replace(alone, block_tables=torch.cat([alone.block_tables] * 3, dim=1))
        assert torch.equal(attend(alone), result[first:last])
    swapped = attend(subset(problem, [2, 0, 1]))
    rows = [row for index in (2, 0, 1) for row in range(*problem.query_ranges[index])]
    assert torch.equal(swapped, result[rows])


@pytest.mark.parametrize("window", [None, 50])
def test_a_prompt_in_chunks_gives_the_bits_of_the_whole(window):
    problem = make_problem([90], [90], num_heads=2, window=window, device=DEVICE)
    whole = attend(problem)
    for first, last in ((0, 1), (1, 40), (40, 83), (83, 90)):
        chunk = from_dense(
            problem.queries[first:last],
            [problem.keys[0][:last]],
            [problem.values[0][:last]],
            query_starts=torch.tensor([0, last - first], dtype=torch.int32, device=DEVICE),
            scale=problem.scale,
            window=window,
        )
        assert torch.equal(attend(chunk), whole[first:last])


def test_a_row_that_belongs_to_no_sequence_gives_zeros():
    problem = make_problem([5], [2], device=DEVICE)
    padded = torch.cat([problem.queries, torch.ones_like(problem.queries)])
    result = attend(replace(problem, queries=padded))
    assert torch.equal(result[:2], attend(problem))
    assert not result[2:].any()


def test_max_query_length_only_sizes_the_grid():
    problem = make_problem([9, 4], [9, 1], device=DEVICE)
    rows = (
        problem.queries,
        problem.key_cache,
        problem.value_cache,
        problem.block_tables,
        problem.context_lengths,
    )
    guessed = prefill_attention(*rows, problem.query_starts, **problem.options)
    assert torch.equal(guessed, attend(problem))


@pytest.mark.parametrize("query_lengths", [None, [3, 5]], ids=["decode", "prefill"])
def test_strided_inputs_give_the_same_bits(query_lengths):
    problem = make_problem([3, 9], query_lengths, device=DEVICE)
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
    assert torch.equal(attend(strided), attend(problem))


def test_a_pool_of_more_than_2_to_the_31_elements():
    # Address space alone: the system backs the few pages that are touched. Block 4 begins 2^32 elements in,
    # which 32 bits take for block 0.
    stride = 2**30
    if DEVICE == "cuda":
        memory = torch.zeros(4 * stride + 128, dtype=HALF, device=DEVICE)
    else:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        buffer = mmap.mmap(-1, 2 * (4 * stride + 128), flags=flags)
        memory = torch.from_numpy(np.frombuffer(buffer, dtype=np.float16))
    keys = memory.as_strided((5, 2, 1, 16), (stride, 16, 16, 1))
    values = keys.as_strided(keys.shape, keys.stride(), 64)
    tokens = torch.ones(2, 1, 16, dtype=HALF, device=DEVICE)
    slots = torch.tensor([8, 9], device=DEVICE)
    block_table.launch_write_kv(tokens, 7 * tokens, keys, values, slots)
    assert values[4].eq(7).all() and not values[0].any()
    table = torch.tensor([[4]], dtype=torch.int32, device=DEVICE)
    lengths = torch.tensor([2], dtype=torch.int32, device=DEVICE)
    starts = torch.tensor([0, 1], dtype=torch.int32, device=DEVICE)
    for result in (
        decode_attention(tokens[:1], keys, values, table, lengths, scale=1.0),
        prefill_attention(tokens[:1], keys, values, table, lengths, starts, scale=1.0),
    ):
        assert result.eq(7).all()


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
    problem = make_problem([5, 6], device=DEVICE)
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


@pytest.mark.skipif(DEVICE != "cpu", reason="a GPU's values are not looked at: the host would wait for it")
@pytest.mark.parametrize("kind", BAD_VALUES)
def test_a_value_that_leads_out_of_the_pool_is_named(kind):
    message, change = BAD_VALUES[kind]
    problem = make_problem([5, 6])
    with pytest.raises(ValueError, match=message):
        attend(replace(problem, **change(problem)))


def test_bad_query_starts_are_named():
    problem = make_problem([5, 6], [2, 3], device=DEVICE)
    starts = problem.query_starts
    with pytest.raises(TypeError, match="query_starts: dtype"):
        attend(replace(problem, query_starts=starts.long()))
    with pytest.raises(ValueError, match="query_starts: shape"):
        attend(replace(problem, query_starts=torch.cat([starts, starts])))
    if DEVICE == "cpu":
        rows = (problem.queries, problem.key_cache, problem.value_cache, problem.block_tables)
        with pytest.raises(ValueError, match="max_query_length: 2, but a sequence has 3 rows"):
            prefill_attention(*rows, problem.context_lengths, starts, scale=1.0, max_query_length=2)
        with pytest.raises(ValueError, match="query_starts: must rise"):
            prefill_attention(*rows, problem.context_lengths, starts + 1, scale=1.0)


@pytest.mark.skipif(
    isinstance(attention._decode_kernel, triton.JITFunction), reason="Triton is not interpreted"
)
def test_bfloat16_is_refused_under_interpretation():
    with pytest.raises(TypeError, match="bfloat16, which Triton's interpreter lacks"):
        attend(make_problem([5], dtype=torch.bfloat16))


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="Triton's interpreter has no bfloat16")
@pytest.mark.parametrize("query_lengths", [None, [33, 5, 1]], ids=["decode", "prefill"])
def test_bfloat16_equals_dense(query_lengths):
    problem = make_problem(
        [33, 300, 64],
        query_lengths,
        num_heads=14,
        head_dim=80,
        block_size=16,
        dtype=torch.bfloat16,
        device=DEVICE,
    )
    assert_close(attend(problem), oracle(problem))


def run_compiled(code: list[str]) -> subprocess.CompletedProcess[str]:
    """Run Python in a process where kernels are compiled, not interpreted."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, *code], env=environment, capture_output=True, text=True, check=False
    )


def test_cpu_tensors_without_interpretation_are_refused_with_the_way_out():
    code = (
        "import torch; from minipaged.kernels.attention import decode_attention;"
        "cache = torch.zeros(1, 4, 1, 16); numbers = torch.ones(1, 1, dtype=torch.int32);"
        "decode_attention(torch.zeros(1, 1, 16), cache, cache, numbers, numbers[0], scale=1.0)"
    )
    done = run_compiled(["-c", code])
    assert "RuntimeError: queries is a CPU tensor" in done.stderr
    assert "set TRITON_INTERPRET=1 before the first import of triton" in done.stderr


def test_every_kernel_compiles_ahead_of_time():
    done = run_compiled([__file__])
    assert done.returncode == 0, done.stderr[-2000:]
    compiled = {tuple(line.split()) for line in done.stdout.splitlines()}
    kernels = (
        "_decode_kernel",
        "_merge_kernel",
        "_prefill_kernel",
        "_slot_mapping_kernel",
        "_write_kv_kernel",
    )
    assert {name for name, _, _ in compiled} == set(kernels)
    assert {target for _, _, target in compiled} == {"80", "90", "100", "gfx942"}
    assert {dtype for _, dtype, _ in compiled} >= {"float16", "bfloat16", "float32", "float64"}


class _Recorder(triton.JITFunction):
    """A kernel that notes how it is launched instead of running, so that the very launch is compiled."""

    def __init__(self, kernel: triton.JITFunction) -> None:
        self.kernel = kernel
        self.launches: list[tuple[tuple, dict]] = []

    def __getitem__(self, grid):
        return lambda *args, **options: self.launches.append((args, options))


def compile_launch(kernel: triton.JITFunction, args: tuple, options: dict, target) -> None:
    """Compile one launch as Triton's JIT would: 1 becomes a constant, multiples of 16 are known as such."""
    from triton.compiler import ASTSource

    pointers = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64"}
    pointers |= {"int32": "i32", "int64": "i64"}
    signature, constants, known = {}, {}, {}
    for index, name in enumerate(kernel.arg_names):
        value = args[index] if index < len(args) else options[name]
        if index >= len(args) or (isinstance(value, int) and value == 1):
            signature[name], constants[name] = "constexpr", value
            continue
        size = value.data_ptr() if isinstance(value, Tensor) else value
        if size % 16 == 0:
            known[(index,)] = [["tt.divisibility", 16]]
        is_tensor = isinstance(value, Tensor)
        signature[name] = "*" + pointers[str(value.dtype)[6:]] if is_tensor else "i32"
    settings = {"num_warps": options["num_warps"]} if "num_warps" in options else {}
    triton.compile(ASTSource(kernel, signature, constants, known), target=target, options=settings)


def compile_every_kernel() -> None:
    """Compile the launches of a few calls for every target; print each kernel, dtype and target."""
    from triton.backends.compiler import GPUTarget

    targets = [GPUTarget("cuda", 80, 32), GPUTarget("cuda", 90, 32), GPUTarget("cuda", 100, 32)]
    targets += [GPUTarget("hip", "gfx942", 64)]
    for module, name in product((attention, block_table), ("require_launch",)):
        setattr(module, name, lambda *_: None)
    recorders = {}
    for module in (attention, block_table):
        for name, kernel in list(vars(module).items()):
            if isinstance(kernel, triton.JITFunction) and name.endswith("_kernel"):
                recorders[name] = _Recorder(kernel)
                setattr(module, name, recorders[name])
    calls = [
        (dict(head_dim=64, num_heads=6, dtype=torch.float16), targets),
        (dict(head_dim=80, num_heads=2, dtype=torch.bfloat16, window=7, softcap=30.0), targets[1::2]),
        (dict(head_dim=32, num_heads=8, dtype=torch.float32, window=7), targets[1::2]),
        (dict(head_dim=16, num_heads=2, dtype=torch.float64), targets[1::2]),
    ]
    for options, chosen in calls:
        problem = make_problem([40, 3], [9, 1], block_size=12, **options)
        attend(problem)
        attend(replace(problem, queries=problem.queries[:2], query_starts=None))
        keys, values = problem.keys[0], problem.values[0]
        block_table.launch_write_kv(keys, values, problem.key_cache, problem.value_cache, torch.arange(40))
        block_table.launch_slot_mapping(
            problem.block_tables, torch.arange(9), torch.zeros(9, dtype=torch.int32), 12
        )
        for name, recorder in recorders.items():
            for args, settings in recorder.launches:
                for target in chosen:
                    compile_launch(recorder.kernel, args, settings, target)
                    print(name, str(options["dtype"])[6:], target.arch)
            recorder.launches.clear()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    compile_every_kernel()
