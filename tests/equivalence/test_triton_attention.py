"""What only the Triton attention kernels do: splits of any length, launches, ahead-of-time compilation.

Run as a script, this file compiles every Triton kernel for GPUs that need not be here.
"""

import mmap
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import triton
from problems import assert_close, chunk, from_dense, make_problem, oracle, run
from torch import Tensor

from minipaged.kernels import _checks, attention, block_table
from minipaged.kernels.attention import decode_attention, prefill_attention

# A masked lane that computes inf - inf or 0 / 0 is a fault even where its result is thrown away.
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF, SINGLE, DOUBLE = torch.float16, torch.float32, torch.float64


def attend(problem) -> Tensor:
    return run(problem, decode_attention, prefill_attention)


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


@pytest.mark.parametrize("window", [None, 50])
def test_a_prompt_in_chunks_gives_the_bits_of_the_whole(window):
    problem = make_problem([90], [90], num_heads=2, window=window, device=DEVICE)
    whole = attend(problem)
    for first, last in ((0, 1), (1, 40), (40, 83), (83, 90)):
        assert torch.equal(attend(chunk(problem, first, last)), whole[first:last])


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


@pytest.mark.skipif(
    isinstance(attention._decode_kernel, triton.JITFunction), reason="Triton is not interpreted"
)
def test_bfloat16_is_refused_under_interpretation():
    with pytest.raises(TypeError, match="bfloat16, which Triton's interpreter lacks"):
        attend(make_problem([5], dtype=torch.bfloat16))


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
    for module, name in ((_checks, "require_launch"), (block_table, "require_launch")):
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
