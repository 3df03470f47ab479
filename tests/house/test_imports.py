"""Who may import whom: reference/ the standard library alone, kernels/ neither reference/ nor the engine, and
no part of the library what measures it.

The rules are read off the source, and the two that readers feel are tried in a fresh interpreter as well: the
reference loads no torch, and transformers works beside a folder called kernels.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "numpy", "transformers", "triton", "numba"}
BENCH_COMMAND = ROOT / "minipaged" / "cli" / "bench.py"
REFERENCE = sorted(ROOT.glob("reference/*.py"))
KERNELS = sorted(ROOT.glob("kernels/*.py"))
LIBRARY = [*sorted(ROOT.glob("minipaged/**/*.py")), *REFERENCE, *KERNELS]
LIGHT_MODULES = ["minipaged", "minipaged.llm", "minipaged.reference"] + [
    f"minipaged.reference.{path.stem}" for path in REFERENCE if path.stem != "__init__"
]


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of everything that a file imports, wherever in the file it does so.

    `from . import x` in reference/ reads as minipaged.reference.x, as it runs. An import by name at run time
    (`import_module`, `__import__`) reads as "a computed name": it can't be checked, so it isn't allowed.
    """
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = ["minipaged", path.parent.name][: 3 - node.level] if node.level else []
            prefix = [*package, *([node.module] if node.module else [])]
            yield from ((node.lineno, ".".join([*prefix, alias.name])) for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield node.lineno, "a computed name"


def offences(path: Path, packages: set[str], own: str) -> list[str]:
    """Imports of a file from outside the named packages and its own folder `own`."""
    return [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for line, name in imports(path)
        if name.split(".")[0] not in packages and not f"{name}.".startswith(f"minipaged.{own}.")
    ]


def run(code: str, cwd: Path) -> str:
    """Standard output of `code` in a fresh interpreter, where '' comes first in sys.path."""
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("path", REFERENCE, ids=lambda path: path.name)
def test_a_reference_file_imports_the_standard_library_only(path: Path) -> None:
    assert not offences(path, set(sys.stdlib_module_names), own="reference")


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.name)
def test_a_kernel_file_imports_neither_reference_nor_engine(path: Path) -> None:
    allowed = {"torch", "triton", "numba", "llvmlite", "numpy", *sys.stdlib_module_names}
    assert not offences(path, allowed, own="kernels")


@pytest.mark.parametrize("path", LIBRARY, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_file_of_the_library_imports_the_benches(path: Path) -> None:
    """`minipaged bench` finds them in the clone by their path: cli/bench.py, and no other file."""
    assert not [name for _, name in imports(path) if name.split(".")[0] == "benchmarks"]
    assert path == BENCH_COMMAND or '"benchmarks' not in path.read_text()


def test_the_list_of_commands_loads_no_command_no_bench_and_nothing_heavy() -> None:
    """In the clone's root, where '' in sys.path would find the folder."""
    code = """
import sys
from minipaged.cli.main import main
main(["--help"])
print(*sys.modules, sep="\\n")
"""
    loaded = set(run(code, cwd=ROOT).splitlines())
    own = {name for name in loaded if name.startswith("minipaged.")}
    assert own == {f"minipaged.{name}" for name in ("cli", "cli.main", "cli.machine", "errors", "terminal")}
    assert not {name for name in loaded if name.split(".")[0] == "benchmarks"}
    assert not (HEAVY | {"rich", "pydantic", "jinja2"}) & loaded


def test_the_help_of_no_bench_waits_for_torch() -> None:
    """The modules of all benches are what their help needs, and torch alone takes seconds."""
    code = """
import sys
from importlib import import_module
from minipaged.cli.bench import load_benchmarks
load_benchmarks()
import benchmarks
for module, _ in benchmarks.BENCHES.values():
    import_module(f"benchmarks.{module}")
print(*sys.modules, sep="\\n")
"""
    assert not {"torch", "transformers", "numba", "triton"} & set(run(code, cwd=ROOT).splitlines())


def test_the_benches_run_without_the_root_in_the_path(tmp_path: Path) -> None:
    code = """
import sys
from importlib.util import find_spec
from minipaged.cli.bench import load_benchmarks
before = list(sys.path)
load_benchmarks()
import benchmarks.command_line
assert sys.path == before
print(benchmarks.__file__, find_spec("reference"))
"""
    assert run(code, cwd=tmp_path) == f"{ROOT / 'benchmarks' / '__init__.py'} None"


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import torch.nn, os", ["torch.nn", "os"]),
        ("def f():\n    from numpy import array", ["numpy.array"]),
        ("from .block_table import f", ["minipaged.reference.block_table.f"]),
        ("from . import allocator", ["minipaged.reference.allocator"]),
        ("from .. import kernels", ["minipaged.kernels"]),
        ("from ..kernels.attention import f", ["minipaged.kernels.attention.f"]),
        ("import importlib\nimportlib.import_module('torch')", ["importlib", "a computed name"]),
        ("__import__('torch')", ["a computed name"]),
    ],
)
def test_every_way_to_import_is_seen(tmp_path: Path, source: str, names: list[str]) -> None:
    path = tmp_path / "reference" / "example.py"
    path.parent.mkdir()
    path.write_text(source)
    assert [name for _, name in imports(path)] == names


@pytest.mark.parametrize("folder", ["reference", "kernels"])
def test_the_init_file_holds_a_docstring_only(folder: str) -> None:
    """From the root, `import kernels` finds our folder: there must be nothing in it to find."""
    tree = ast.parse((ROOT / folder / "__init__.py").read_text())
    assert ast.get_docstring(tree)
    assert len(tree.body) == 1


@pytest.mark.parametrize("module", LIGHT_MODULES)
def test_importing_the_reference_loads_nothing_heavy(module: str, tmp_path: Path) -> None:
    loaded = run(f"import sys, {module}; print(*sys.modules, sep='\\n')", cwd=tmp_path).splitlines()
    assert module in loaded
    assert not HEAVY & set(loaded)


def test_scheduler_and_block_manager_run_on_the_standard_library_alone(tmp_path: Path) -> None:
    """As they do in a browser: every other package is blocked, and two requests are planned and served."""
    code = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in {*sys.stdlib_module_names, "minipaged"}:
            raise ImportError(f"{name} is not in the standard library")

sys.meta_path[:] = [Blocked(), *sys.meta_path]
from minipaged.engine.block_manager import BlockManager
from minipaged.engine.policies import ShortestFirst
from minipaged.engine.request import Request, Sequence
from minipaged.engine.scheduler import Scheduler
from minipaged.sampling_params import SamplingParams

blocks = BlockManager(4, 4)
scheduler = Scheduler(blocks, max_num_seqs=8, max_num_batched_tokens=8, policy=ShortestFirst())
for name, length in (("A", 9), ("B", 5)):
    tokens = list(range(length))
    chain, table = blocks.new_chain(tokens, None), blocks.new_table()
    sequence = Sequence(tokens, chain, table, None, num_prompt_tokens=length, seed=0)
    scheduler.waiting.append(Request(name, None, tokens, SamplingParams(), 1, [sequence], None))
print([(row.request.request_id, row.start, row.stop) for row in scheduler.schedule().rows])
"""
    assert run(code, cwd=tmp_path) == "[('B', 0, 5)]"


def test_importing_the_package_takes_a_tenth_of_a_second_at_most(tmp_path: Path) -> None:
    """The best of five: another process may take the CPU meanwhile. LLM loads torch with its first model."""
    code = "import time; start = time.perf_counter(); import minipaged; print(time.perf_counter() - start)"
    assert min(float(run(code, cwd=tmp_path)) for _ in range(5)) < 0.1


def test_transformers_runs_in_the_root_beside_a_folder_called_kernels() -> None:
    """transformers looks for a distribution called kernels and, here, meets our folder of that name."""
    code = """
import sys
assert sys.path[0] == ""
import torch
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(vocab_size=11, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                     num_attention_heads=2, num_key_value_heads=1)
with torch.no_grad():
    logits = LlamaForCausalLM(config)(torch.tensor([[1, 2, 3]])).logits
assert logits.isfinite().all()
print(*logits.shape)
"""
    assert run(code, cwd=ROOT) == "1 3 11"
