"""The modules of minipaged/course import each other in one direction, within functions too."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

COURSE = Path(__file__).parents[2] / "minipaged" / "course"


def imports(text: str, modules: set[str]) -> set[str]:
    """Those of `modules` that a module beside them imports anywhere: from .name, or from . import name."""
    nodes = [each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.ImportFrom)]
    names = {name for node in nodes if node.level == 1 for name in _named(node)}
    return names & modules


def _named(node: ast.ImportFrom) -> set[str]:
    return {node.module.partition(".")[0]} if node.module else {alias.name for alias in node.names}


def test_no_module_of_the_course_imports_itself_by_a_detour() -> None:
    paths = {path.stem: path for path in COURSE.glob("*.py")}
    order = TopologicalSorter({name: imports(path.read_text(), set(paths)) for name, path in paths.items()})
    assert len(list(order.static_order())) == len(paths)  # a cycle raises CycleError, which names it


def test_an_import_in_a_function_makes_a_cycle_too() -> None:
    text = "def f():\n    from .b import x\n\n\nfrom . import c\nfrom ..a import y\n"
    assert imports(text, {"a", "b", "c"}) == {"b", "c"}
    with pytest.raises(CycleError):
        list(TopologicalSorter({"a": {"b"}, "b": {"a"}}).static_order())
