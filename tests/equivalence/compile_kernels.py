"""Compile every GPU kernel for GPUs that need not be here, and print what each takes of one, as JSON.

`python compile_kernels.py triton` or `numba`. A script, since a process either compiles kernels or interprets
them: it is run with the interpreter's and the simulator's switch off. The functions that launch kernels are
called as anybody calls them, on CPU tensors, but a launch is only noted; then the very launch is compiled.
"""

import ast
import importlib
import inspect
import json
import pkgutil
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import triton
from problems import make_problem, run
from torch import Tensor
from triton.backends.compiler import GPUTarget

import minipaged.kernels
from minipaged.kernels import allocator, attention, beam_search, block_table, copy_on_write

HALVES = (torch.float16, torch.bfloat16)
FLOATS = (*HALVES, torch.float32, torch.float64)
TARGETS = {f"cuda {arch}": GPUTarget("cuda", arch, 32) for arch in (80, 90, 100)}
TARGETS["hip gfx942"] = GPUTarget("hip", "gfx942", 64)
ONE_TARGET = ("cuda 90",)

Launch = tuple[Any, tuple[Any, ...], dict[str, Any]]  # kernel, arguments by position, by keyword


@dataclass(frozen=True)
class Call:
    """A call that launches kernels: its name in the table, and what it is compiled for."""

    name: str
    function: Callable[..., Any]  # takes a dtype, unless `dtypes` is empty: its kernels read no floats
    dtypes: tuple[torch.dtype, ...] = ()
    targets: tuple[str, ...] = tuple(TARGETS)


@dataclass(frozen=True)
class Resources:
    """What one compiled kernel takes: per thread registers and bytes spilled, per block bytes shared."""

    kernel: str
    call: str
    dtype: str
    target: str
    registers: int
    spilled: int
    shared: int
    widest_store: int | None = None  # bits, of Numba's kernels


# ---- the calls ---------------------------------------------------------------------------------------


def attend(dtype: torch.dtype, *, head_dim: int, group: int, **options: Any) -> None:
    """Prefill, then decode, with a table of more than one split."""
    problem = make_problem(
        [300, 3], [9, 1], num_heads=2 * group, head_dim=head_dim, block_size=16, dtype=dtype, **options
    )
    run(problem, attention.decode_attention, attention.prefill_attention)
    decode = replace(problem, queries=problem.queries[:2], query_starts=None)
    run(decode, attention.decode_attention, attention.prefill_attention)


def write(dtype: torch.dtype) -> None:
    """Write eight KV heads of 128 to layer 1 of 2."""
    pool = torch.zeros(4, 2, 2, 16, 8, 128, dtype=dtype)
    tokens = torch.zeros(40, 8, 128, dtype=dtype)
    block_table.launch_write_kv(tokens, tokens, pool[:, 1, 0], pool[:, 1, 1], torch.arange(40))


def map_slots() -> None:
    """Positions as the engine has them, 64-bit."""
    tokens = torch.zeros(40, dtype=torch.int64)
    block_table.launch_slot_mapping(torch.zeros(3, 8, dtype=torch.int32), tokens, tokens, 16)


def manage_blocks() -> None:
    """Take, share and give back blocks; then six beams of eight blocks each become six others."""
    pool = allocator.BlockAllocator(64, "cpu")
    tables, lengths = torch.zeros(6, 8, dtype=torch.int32), torch.zeros(6, dtype=torch.int32)
    pool.allocate(lengths + 1, tables, lengths)
    pool.share(tables[0])
    pool.free(tables[0])
    beam_search.reorder_beams(tables, lengths, pool, lengths + 20, 16)


def copy() -> None:
    """Copy blocks whose size and address 8 bytes divide, as those of nearly every model are."""
    words = copy_on_write.as_words(torch.zeros(4, 2, 2, 16, 2, 64, dtype=torch.float16))
    pairs = torch.zeros(3, 2, dtype=torch.int64)
    copy_on_write.launch_copy_blocks(words.numpy(), words.numpy(), pairs.numpy())


CALLS = {
    "triton": [
        Call("head_dim 128, group 4", partial(attend, head_dim=128, group=4), FLOATS),
        Call("head_dim 64, group 3", partial(attend, head_dim=64, group=3), HALVES, ONE_TARGET),
        Call(
            "head_dim 256, group 2, window, soft cap",
            partial(attend, head_dim=256, group=2, window=64, softcap=50.0),
            HALVES,
            ONE_TARGET,
        ),
        Call("8 heads of 128", write, FLOATS),
        Call("", map_slots),
        Call("", manage_blocks),
    ],
    "numba": [Call("", copy, targets=("cuda 80", "cuda 90"))],
}


# ---- finding kernels, and noting how they are launched -------------------------------------------------


def modules() -> list[ModuleType]:
    """Every file of kernels/."""
    names = [info.name for info in pkgutil.iter_modules(minipaged.kernels.__path__)]
    return [importlib.import_module(f"minipaged.kernels.{name}") for name in names]


def find_kernels(kind: type) -> dict[str, str]:
    """Source by name of all functions that `triton.jit` or `cuda.jit` has made a `kind` of."""
    found = {}
    for module in modules():
        functions = [getattr(value, "fn", None) or value.py_func for value in vars(module).values()
                     if isinstance(value, kind)]  # fmt: skip
        found |= {f.__name__: inspect.getsource(f) for f in functions if f.__module__ == module.__name__}
    return found


def unreached(kernels: dict[str, str], launched: Iterable[str]) -> list[str]:
    """Kernels that were not launched, nor called by one that was."""
    reached, new = set[str](), set(launched)
    while new:
        reached |= new
        sources = [kernels[name] for name in new]
        named = {node.id for source in sources for node in ast.walk(ast.parse(source)) if hasattr(node, "id")}
        new = (named & kernels.keys()) - reached
    return sorted(kernels.keys() - reached)


def record_launches(kind: type) -> list[Launch]:
    """Make `kernel[grid](...)` note the launch in the list returned, for every kernel of that kind."""
    launches: list[Launch] = []

    def configured(kernel: Any, _grid: Any) -> Callable[..., None]:
        return lambda *args, **options: launches.append((kernel, args, options))

    kind.__getitem__ = configured  # type: ignore[attr-defined]
    for module in modules():
        if hasattr(module, "require_launch"):  # which refuses CPU tensors
            module.require_launch = lambda *_: None
    return launches


# ---- compiling -------------------------------------------------------------------------------------------


def triton_type(value: Any) -> str:
    """An argument's type in a Triton signature."""
    if isinstance(value, Tensor):
        kind, bits = re.fullmatch(r"torch\.([a-z]+)(\d*)", str(value.dtype)).groups()
        return "*" + {"float": "fp", "bfloat": "bf", "int": "i", "uint": "u", "bool": "i1"}[kind] + bits
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, float):
        return "fp32"
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def specialised(path: tuple[int, ...], value: Any, constants: dict[Any, Any], known: dict[Any, Any]) -> Any:
    """An argument's type, of a tuple the types of its members. Notes what Triton's JIT knows of the value:
    1 becomes a constant, and multiples of 16 are known as such. `path` leads to the value."""
    if isinstance(value, tuple):
        types = [specialised((*path, i), member, constants, known) for i, member in enumerate(value)]
        return type(value)(*types) if hasattr(value, "_fields") else tuple(types)
    one = isinstance(value, int) and not isinstance(value, bool) and value == 1
    if value is None or one:
        constants[path] = value
        return "constexpr"
    size = value.data_ptr() if isinstance(value, Tensor) else value
    if isinstance(size, int) and size % 16 == 0:
        known[path] = [["tt.divisibility", 16]]
    return triton_type(value)


def compile_triton(launch: Launch, target: GPUTarget) -> Any:
    """Compile one launch as Triton's JIT would."""
    kernel, args, options = launch
    given = dict(zip(kernel.arg_names, args, strict=False)) | options
    signature: dict[str, Any] = {}
    constants: dict[Any, Any] = {}
    known: dict[Any, Any] = {}
    for index, parameter in enumerate(kernel.params):
        value = given.get(parameter.name, parameter.default)
        if parameter.is_constexpr:
            signature[parameter.name], constants[(index,)] = "constexpr", value
        elif parameter.do_not_specialize:
            signature[parameter.name] = triton_type(value)
        else:
            signature[parameter.name] = specialised((index,), value, constants, known)
        if parameter.do_not_specialize_on_alignment:
            known.pop((index,), None)
    settings = {name: options[name] for name in ("num_warps", "num_stages") if name in options}
    source = triton.compiler.ASTSource(kernel, signature, constants, known)
    return triton.compile(source, target=target, options=settings)


def nvidia_tool(name: str) -> str:
    """A program that Triton's wheel brings along."""
    return str(Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name)


def cubin_resources(cubin: bytes) -> tuple[int, int, int]:
    """Registers, bytes of stack frame and static shared bytes. Only what is spilled makes a frame."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [nvidia_tool("cuobjdump"), "--dump-resource-usage", file.name]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack, shared, local = re.search(
        r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", report
    ).groups()
    return int(registers), int(stack) + int(local), int(shared)


def check_barrier(launch: Launch, ptx: str) -> None:
    """No thread of `_push_kernel` may have anything left to read or write when one writes how many blocks are
    free: all of them read that number first. Not every Triton puts a barrier there by itself."""
    if launch[0].__name__ == "_push_kernel":
        after_branches = ptx[ptx.rindex("bra ") : ptx.rindex("st.global")]
        assert "bar.sync" in after_branches, "no barrier before the number of free blocks"
        assert "ld.global" not in after_branches.rsplit("bar.sync", 1)[1], "a load after the last barrier"


def triton_resources(launch: Launch, target: GPUTarget) -> tuple[int, int, int]:
    """Registers, bytes spilled and bytes shared of one launch, compiled for one target."""
    compiled = compile_triton(launch, target)
    if target.backend == "cuda":
        check_barrier(launch, compiled.asm["ptx"])
        registers, spilled, _ = cubin_resources(compiled.asm["cubin"])
    else:
        assembly = compiled.asm["amdgcn"]
        registers, spilled = (
            int(re.search(rf"\.{name}:\s+(\d+)", assembly)[1])
            for name in ("vgpr_count", "private_segment_fixed_size")
        )
    return registers, spilled, compiled.metadata.shared


def numba_resources(launch: Launch, capability: int) -> tuple[int, int, int, int]:
    """Registers, bytes spilled, bytes shared, and the bits of the widest store of one launch."""
    from numba import cuda, typeof, types

    kernel, args, _ = launch
    signature = types.void(*map(typeof, args))
    ptx, _ = cuda.compile_ptx(kernel.py_func, signature, cc=divmod(capability, 10))
    widest = max(int(bits) for bits in re.findall(r"st\.global\.[a-z](\d+)", ptx))
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx)
        # Of the two assemblers in Triton's wheel the newer one, since NVVM may be newer than the other.
        command = [
            nvidia_tool("ptxas-blackwell"),
            f"--gpu-name=sm_{capability}",
            str(source),
            "-o",
            str(cubin),
        ]
        subprocess.run(command, check=True)
        return *cubin_resources(cubin.read_bytes()), widest


def resources(tool: str, launch: Launch, target: str) -> tuple[int, ...]:
    """Compile one launch by either tool."""
    if tool == "triton":
        return triton_resources(launch, TARGETS[target])
    return numba_resources(launch, TARGETS[target].arch)


def compile_all(tool: str, kind: type) -> dict[str, Any]:
    """Everything that the tests ask for."""
    kernels = find_kernels(kind)
    launches = record_launches(kind)
    rows, launched = [], set[str]()
    for call in CALLS[tool]:
        for dtype in call.dtypes or (None,):
            launches.clear()
            call.function() if dtype is None else call.function(dtype)
            for launch in launches:
                name = (getattr(launch[0], "fn", None) or launch[0].py_func).__name__
                launched.add(name)
                for target in call.targets:
                    label = "" if dtype is None else str(dtype).removeprefix("torch.")
                    rows.append(Resources(name, call.name, label, target, *resources(tool, launch, target)))
    return {
        "kernels": sorted(kernels),
        "unreached": unreached(kernels, launched),
        "rows": [asdict(row) for row in rows],
    }


def main(tool: str) -> None:
    if tool == "triton":
        report = {"version": triton.__version__, **compile_all(tool, triton.JITFunction)}
    else:
        import numba_cuda
        from numba.cuda.dispatcher import CUDADispatcher

        report = {"version": numba_cuda.__version__, **compile_all(tool, CUDADispatcher)}
    print(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1])
