"""Files short enough to be read in one go, and everything public explained and typed."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LONGEST = {
    "reference": 215,
    "kernels": 310,
    "minipaged": 320,
    "minipaged/cli": 320,
    "minipaged/course": 320,
    "minipaged/models": 320,
    "minipaged/simulator": 320,
    "minipaged/terminal": 320,
    "minipaged/view": 320,
    "benchmarks": 320,
    "benchmarks/gpu": 370,
    "benchmarks/huggingface": 320,
    "benchmarks/paper": 320,
    "benchmarks/shared": 320,
}
SOURCES = [path for folder in LONGEST for path in sorted(ROOT.glob(f"{folder}/*.py"))]
Function = ast.FunctionDef | ast.AsyncFunctionDef


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
def test_everything_public_is_explained_and_typed(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), "a file opens with its idea"
    assert not undocumented(tree), "no docstring"
    assert not untyped(tree), "no type hint"


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
