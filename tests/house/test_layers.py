"""The rooms of the package stand on each other: none imports one above it, no two files import each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import minipaged

PACKAGE = Path(__file__).parents[2] / "minipaged"
# From the ground up. What stands on one line may use itself and all lines above it.
LAYERS = [
    ["errors", "reference", "kernels"],
    ["config", "sampling_params", "outputs"],
    ["terminal"],
    ["models"],
    ["engine"],
    ["llm"],
    ["view", "simulator", "lessons"],
    ["course"],
    ["cli"],
    ["__main__"],
]
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if not any(p.is_symlink() for p in path.parents)]


def module(path: Path) -> str:
    """The dotted name of a file of the package."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module(path): path for path in FILES}


def imported(path: Path) -> Iterator[str]:
    """Modules of the package that a file imports, at its top or inside a function; not those for types."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    package = module(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom):
            continue
        base = package[: len(package) - node.level + 1] if node.level else []
        name = ".".join([*base, *([node.module] if node.module else [])])
        for alias in node.names:
            full = f"{name}.{alias.name}"
            yield full if full in MODULES or full.count(".") == 1 else name


def room(name: str) -> str:
    """The first part of a module's name below the package."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else ""


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_module_imports_from_a_higher_layer(path: Path) -> None:
    own = room(module(path))
    if not own:  # the package itself fetches names when they are asked for
        return
    for name in imported(path):
        if name.startswith("minipaged.") and room(name) in LEVEL:
            assert LEVEL[room(name)] <= LEVEL[own], f"{own} imports {name}"


def test_every_room_has_a_layer() -> None:
    names = {path.stem if path.is_file() else path.name for path in PACKAGE.iterdir()}
    assert names - {"__init__", "__pycache__", "py"} <= LEVEL.keys()


def test_no_two_files_import_each_other() -> None:
    needs = {name: {each for each in imported(path) if each in MODULES} for name, path in MODULES.items()}
    ready: set[str] = set()
    while free := {name for name, needed in needs.items() if name not in ready and needed <= ready | {name}}:
        ready |= free
    assert ready == needs.keys(), f"these import each other: {sorted(needs.keys() - ready)}"


def test_every_public_name_can_be_imported() -> None:
    for name in minipaged.__all__:
        assert getattr(minipaged, name).__name__ == name
