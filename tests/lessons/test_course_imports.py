"""What the course imports: its modules in one direction, an exercise as it is, and no torch without need."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from minipaged.course.exercise import load_exercise

ROOT = Path(__file__).parents[2]
COURSE = ROOT / "minipaged" / "course"


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


def test_an_edit_of_the_same_second_and_length_is_graded_as_it_is(tmp_path: Path) -> None:
    """Bytecode in a cache is known by the second and the length of its text."""
    file = tmp_path / "mine.py"
    for value in (1, 2, 3):
        file.write_text(f"answer = {value}\n")
        assert load_exercise(file).answer == value


def test_unsolved_lessons_import_no_torch() -> None:
    """Only what is graded is imported: the first lesson that is not started ends a run."""
    code = (
        "import sys, pytest\n"
        f"pytest.main([{str(ROOT / 'lessons')!r}, '--same-process', '-p', 'no:cacheprovider'])\n"
        "print('imported:', sorted({'torch', 'triton', 'numba', 'numpy'} & set(sys.modules)))\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "imported: []" in ended.stdout, ended.stdout + ended.stderr
    assert ended.stdout.count("\n") < 60
