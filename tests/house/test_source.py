"""Files short enough to be read in one go, and everything public explained and typed."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LONGEST = {
    "reference": 150,
    "kernels": 250,
    "minipaged": 250,
    "minipaged/cli": 250,
    "minipaged/course": 250,
    "minipaged/engine": 250,
    "minipaged/models": 320,
    "minipaged/simulator": 250,
    "minipaged/terminal": 250,
    "minipaged/view": 250,
    "benchmarks": 320,
    "benchmarks/gpu": 370,
    "benchmarks/huggingface": 320,
    "benchmarks/paper": 320,
    "benchmarks/shared": 320,
}
SOURCES = [path for folder in LONGEST for path in sorted(ROOT.glob(f"{folder}/*.py"))]
Function = ast.FunctionDef | ast.AsyncFunctionDef


MOST_LINES, MOST_PARAMETERS = 40, 6  # of a function: its code without the docstring
MOST_OF_A_KERNEL = 60, 10  # a tuple of strides is one parameter
# Longer than that, or with more parameters, and why. None of them may be longer than a kernel.
EXCEPTIONS = {
    "reference/attention.py::decode_attention": "the twins' arguments, which the page explains one by one",
    "reference/attention.py::prefill_attention": "the twins' arguments, which the page explains one by one",
    "reference/kv_cache_size.py::token_address": "four indices of a tensor and the five sizes of its axes",
    "minipaged/engine/backends.py::_reference_prefill": "the twins' arguments",
    "minipaged/engine/model_hook.py::paged_attention": "transformers calls it with these arguments",
    "minipaged/models/trial.py::_trial_attention": "transformers calls it with these arguments",
    "minipaged/models/trial.py::attend": "attention: what it attends from and to, and its three options",
    "benchmarks/paper/measured.py::claims": "a table, written out",
}


def public(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, Function | ast.ClassDef]]:
    """Public functions, classes and methods with their dotted names, and `__init__`. No nested functions."""
    for node in body:
        if not isinstance(node, Function | ast.ClassDef):
            continue
        if node.name.startswith("_") and node.name != "__init__":
            continue
        yield prefix + node.name, node
        if isinstance(node, ast.ClassDef):
            yield from public(node.body, f"{prefix}{node.name}.")


def undocumented(tree: ast.Module) -> list[str]:
    """Public names without a docstring; a class explains its own `__init__`, a getter its setter."""
    return [
        name
        for name, node in public(tree.body)
        if not ast.get_docstring(node)
        and not name.endswith("__init__")
        and not any(ast.unparse(mark).endswith((".setter", "overload")) for mark in node.decorator_list)
    ]


def untyped(tree: ast.Module) -> list[str]:
    """Parameters and returns of public functions that carry no type hint."""
    found = []
    for name, node in public(tree.body):
        if isinstance(node, ast.ClassDef):
            continue
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        arguments += [extra for extra in (node.args.vararg, node.args.kwarg) if extra]
        is_static = any(ast.unparse(mark) == "staticmethod" for mark in node.decorator_list)
        bound = arguments[:1] if "." in name and not is_static else []
        found += [f"{name}({a.arg})" for a in arguments if a.annotation is None and a not in bound]
        found += [f"{name} -> ?"] if node.returns is None else []
    return found


def too_large(path: Path) -> list[str]:
    """Functions beyond the limits, public constructors aside."""
    is_kernel = path.parent.name == "kernels"
    most_lines, most_parameters = MOST_OF_A_KERNEL if is_kernel else (MOST_LINES, MOST_PARAMETERS)
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, Function) or node.name == "__init__":
            continue
        body = node.body[1:] if ast.get_docstring(node) else node.body
        num_lines = node.end_lineno - body[0].lineno + 1 if body and node.end_lineno else 0
        signature = node.args
        arguments = [*signature.posonlyargs, *signature.args, *signature.kwonlyargs]
        arguments += [extra for extra in (signature.vararg, signature.kwarg) if extra]
        num_parameters = len([argument for argument in arguments if argument.arg not in ("self", "cls")])
        if num_lines > most_lines or num_parameters > most_parameters:
            found.append(f"{node.name}: {num_lines} lines, {num_parameters} parameters")
    return found


def longest_for(path: Path) -> int:
    """The limit of the file itself if it has one, else of its folder."""
    name = path.relative_to(ROOT)
    return LONGEST.get(name.as_posix()) or LONGEST[name.parent.as_posix()]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_file_is_short_enough_to_be_read(path: Path) -> None:
    length, longest = len(path.read_text().splitlines()), longest_for(path)
    assert length <= longest, (
        f"{path.name} has {length} lines, at most {longest}: is there a second idea in it?"
    )


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_function_is_short_enough_to_be_read(path: Path) -> None:
    file = path.relative_to(ROOT).as_posix()
    assert not [one for one in too_large(path) if f"{file}::{one.split(':')[0]}" not in EXCEPTIONS]


def test_the_list_of_large_functions_is_short_and_not_stale() -> None:
    found = {
        f"{path.relative_to(ROOT).as_posix()}::{one.split(':')[0]}"
        for path in SOURCES
        for one in too_large(path)
    }
    assert found == EXCEPTIONS.keys() and len(EXCEPTIONS) <= 10


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_everything_public_is_explained_and_typed(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), "a file opens with its idea"
    assert not undocumented(tree), "no docstring"
    assert not untyped(tree), "no type hint"


def test_what_is_too_large_is_found(tmp_path: Path) -> None:
    path = tmp_path / "example.py"
    body = "\n".join(["    'Docstring.'", *["    x = 1"] * 41])
    path.write_text(f"def long():\n{body}\ndef wide(a, b, c, d, e, f, *rest): ...\ndef fine(a, b): ...\n")
    assert too_large(path) == ["long: 41 lines, 0 parameters", "wide: 1 lines, 7 parameters"]


def test_what_is_missing_is_found() -> None:
    tree = ast.parse("""
class Table:
    def __init__(self, size): ...
    def append(self, token: int, *rest) -> None: "Explained."
    @staticmethod
    def make(size) -> "Table": "Explained."
    def _hidden(self, x): ...
def free(block: int):
    def nested(x): ...
def _hidden(x): ...
""")
    assert undocumented(tree) == ["Table", "free"]
    assert untyped(tree) == [
        "Table.__init__(size)", "Table.__init__ -> ?", "Table.append(rest)", "Table.make(size)", "free -> ?",
    ]  # fmt: skip
