"""The course as lessons/manifest.toml describes it: order, titles, hints and answer keys of the lessons.

The answer key of a lesson is a module of this package. The learner writes the functions of it that the
manifest lists as `write`. A long lesson has parts, each with a key and a test file of its own. They share one
exercise.py and are graded in order. Page: docs/lessons.md.
"""

from __future__ import annotations

import ast
import importlib
import tomllib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import InvalidRequestError

MANIFEST = "manifest.toml"
PROGRESS = ".progress.json"  # kept by progress.py


@dataclass(frozen=True)
class Part:
    """One part of a lesson that has several."""

    title: str
    key: str  # the module that answers it
    write: list[str]  # its functions and methods that the learner writes
    tests: str  # the file that grades it
    hints: list[str]  # from a nudge to nearly the answer


@dataclass(frozen=True)
class Lesson:
    """One lesson, as the manifest describes it; `root` is the folder that holds all of them."""

    root: Path
    folder: str  # such as 03_allocator
    title: str
    concept: str  # one line: what is learnt
    minutes: int
    runs_on: str  # "CPU", or "interpreted here, compiled on a GPU"
    key: str  # the module that answers it; with parts, that of the last one
    write: list[str]  # its functions and methods that the learner writes, those of all parts
    page: str
    hints: list[str]  # from a nudge to nearly the answer; with parts, those of all parts
    learnt: str  # what to take home, said after a pass
    vllm: str  # what the real vLLM does differently
    needs: list[str] = field(default_factory=list)  # folders of the lessons to be done before
    parts: list[Part] = field(default_factory=list)  # none, or at least two
    time_limit: int = 20  # CPU seconds a test may take: a loop that never ends is told, not waited for

    @property
    def number(self) -> int:
        """The lesson's number, at the start of the folder's name."""
        return int(self.folder.partition("_")[0])

    @property
    def name(self) -> str:
        """The folder's name without its number, such as allocator."""
        return self.folder.partition("_")[2]

    @property
    def path(self) -> Path:
        """The lesson's folder."""
        return self.root / self.folder

    @property
    def exercise_path(self) -> Path:
        """The file that the learner writes."""
        return self.path / "exercise.py"

    @property
    def keys(self) -> list[str]:
        """The modules that answer it, in the order of its parts."""
        return [part.key for part in self.parts] or [self.key]

    def part_number(self, tests: str) -> int:
        """Return the number, from 1, of the part that a test file grades; 0 for a lesson without parts."""
        files = [part.tests for part in self.parts]
        return files.index(tests) + 1 if tests in files else 0

    def id_of(self, part: Part) -> str:
        """Return a name of a part that no other lesson has, such as 07_prefix_cache/test_prefix_chain.py."""
        return f"{self.folder}/{part.tests}"

    def test_functions(self, tests: str = "test_*.py") -> set[str]:
        """Return the names of the functions that grade it, or those of one test file."""
        trees = [ast.parse(path.read_text(encoding="utf-8")) for path in self.path.glob(tests)]
        functions = [node for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)]
        return {function.name for function in functions if function.name.startswith("test_")}

    def answer(self) -> ModuleType:
        """Import and return the answer key; with parts, a module with all names of their keys."""
        modules = [importlib.import_module(key) for key in self.keys]
        if len(modules) == 1:
            return modules[0]
        together = ModuleType(self.folder)
        for module in modules:
            vars(together).update(vars(module))
        return together


class Course:
    """The lessons under `root`, in order."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def lessons(self) -> list[Lesson]:
        """All lessons of the manifest, in its order."""
        entries = tomllib.loads((self.root / MANIFEST).read_text(encoding="utf-8"))["lesson"]
        return [_lesson(self.root, entry) for entry in entries]

    def find(self, name: str) -> Lesson:
        """Return a lesson by its number, folder or name. Raises InvalidRequestError for an unknown one."""
        for lesson in self.lessons:
            if name.strip("/").lstrip("0") == str(lesson.number) or name in (lesson.folder, lesson.name):
                return lesson
        raise InvalidRequestError(
            f"no lesson {name!r}: there are 1 to {len(self.lessons)}, such as 3 or allocator"
        )


def _lesson(root: Path, entry: dict[str, Any]) -> Lesson:
    """Return the lesson of an entry of the manifest. Its key, names and hints may stand in parts."""
    parts = [Part(**part) for part in entry.pop("parts", [])]
    if parts:
        entry["key"] = parts[-1].key
        entry["write"] = [name for part in parts for name in part.write]
        entry["hints"] = [hint for part in parts for hint in part.hints]
    return Lesson(root=root, parts=parts, **entry)


def find_course(start: Path | None = None) -> Course:
    """Return the course in the working directory or around it, else the one beside this package.

    Looks in `start` (the working directory), its `lessons` folder, and the same of each folder above it.
    """
    start = (start or Path.cwd()).resolve()
    for folder in (start, *start.parents):
        for root in (folder, folder / "lessons"):
            if holds_a_course(root):
                return Course(root)
    return Course(shipped_lessons())


def holds_a_course(folder: Path) -> bool:
    """Whether a folder holds lessons."""
    return (folder / MANIFEST).is_file() and (folder / "pytest.ini").is_file()


def shipped_lessons() -> Path:
    """Return the folder of lessons that came with this package: the repository's, or the wheel's."""
    from .. import lessons

    return Path(next(iter(lessons.__path__))).resolve()


def is_own_copy(course: Course) -> bool:
    """Whether the lessons are a learner's to change: not those inside an installed wheel."""
    return course.root != shipped_lessons() or (course.root.parent / "pyproject.toml").is_file()
