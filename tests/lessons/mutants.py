"""Break the answer keys of lessons 2 to 9 in every small way, and see that the lessons' own tests notice.

Cosmic Ray makes the mutants: one changed operator, number, branch or loop each, in a scratch copy of the
sources. Only what a learner writes is mutated; messages and type hints are not. A mutant that survives must
be listed below with the reason why no test can tell it from the key. `make mutants` runs all.
"""

from __future__ import annotations

import ast
import importlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import TestOutcome, WorkerOutcome, WorkResult

from minipaged.course.manifest import Course, Lesson

ROOT = Path(__file__).parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.json")
NUMBERS = range(2, 10)
WANTED = 0.95
# What the key does behind a function that is to be written: a learner writes it without knowing its name.
BEHIND = {"08_swap_or_recompute": ["_move"]}


def main(names: list[str]) -> int:
    """Mutate the lessons named, or 2 to 9; print a table; 0 where enough mutants died in each."""
    course = Course(ROOT / "lessons")
    lessons = [course.find(name) for name in names] or [
        each for each in course.lessons if each.number in NUMBERS
    ]
    with ThreadPoolExecutor(max_workers=2) as pool:
        results = list(pool.map(mutate, lessons))
    good = True
    for lesson, (killed, survivors) in zip(lessons, results, strict=True):
        known = json.loads(EQUIVALENT.read_text()).get(lesson.folder, {})
        open_ones = [diff for diff in survivors if diff not in known]
        total = killed + len(open_ones)
        share = killed / total if total else 1.0
        good &= share >= WANTED
        print(f"{lesson.folder:24} {killed:4} of {total:4} killed  {share:6.1%}   {len(known)} equivalent")
        for diff in open_ones:
            print(f"    survives: {diff}")
        for diff in set(known) - set(survivors):
            print(f"    listed as equivalent, but gone or killed: {diff}")
            good = False
    return 0 if good else 1


def mutate(lesson: Lesson) -> tuple[int, list[str]]:
    """How many mutants of a lesson's key its tests kill, and the changes that they don't notice."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        for name in ("minipaged", "reference", "kernels", "lessons"):
            ignore = shutil.ignore_patterns("__pycache__", ".*")
            shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=ignore)
        modules = [str((tree / path).resolve()) for path in key_paths(lesson)]
        python = (
            f'"{sys.executable}" -B -m pytest -q -x -p no:cacheprovider -p no:xdist -p no:hypothesispytest'
        )
        (tree / "config.toml").write_text(
            "[cosmic-ray]\n"
            f"module-path = {json.dumps(modules)}\n"
            "timeout = 60.0\n"
            "excluded-modules = []\n"
            f"test-command = '{python} lessons/{lesson.folder} --solutions --same-process'\n"
            "[cosmic-ray.distributor]\n"
            'name = "local"\n'
        )
        session = tree / "session.sqlite"
        cosmic_ray(tree, "init", "config.toml", str(session))
        leave_out(session, lesson)
        cosmic_ray(tree, "exec", "config.toml", str(session))
        return count(session)


def key_paths(lesson: Lesson) -> list[Path]:
    """Where the modules that answer a lesson are, from the root."""
    modules = [importlib.import_module(key) for key in lesson.keys]
    return [Path(str(module.__file__)).resolve().relative_to(ROOT) for module in modules]


def cosmic_ray(tree: Path, *arguments: str) -> None:
    """Run Cosmic Ray in a copy of the sources; that copy is what Python imports there."""
    command = [sys.executable, "-m", "cosmic_ray.cli", *arguments]
    environment = {"PYTHONPATH": str(tree), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)


def leave_out(session: Path, lesson: Lesson) -> None:
    """Mark as skipped what lies outside of the functions to be written, or in a message or a type hint."""
    with use_db(str(session), mode=WorkDB.Mode.open) as db:
        for item in list(db.work_items):
            (mutation,) = item.mutations
            inside, outside = ranges(str(mutation.module_path), lesson)
            start, stop = mutation.start_pos, mutation.end_pos
            within = any(low <= start and stop <= high for low, high in inside)
            if not within or any(low <= start and stop <= high for low, high in outside):
                db.set_result(item.job_id, WorkResult(worker_outcome=WorkerOutcome.SKIPPED))


Range = tuple[tuple[int, int], tuple[int, int]]


def ranges(module: str, lesson: Lesson) -> tuple[list[Range], list[Range]]:
    """Where in a file mutants are wanted, and where within that they are not; rows from 1, columns from 0."""
    inside, outside = [], []
    for name, node in functions(ast.parse(Path(module).read_text())):
        if name in lesson.write + BEHIND.get(lesson.folder, []):
            inside.append(extent(node))
            hints = [argument.annotation for argument in ast.walk(node) if isinstance(argument, ast.arg)]
            hints += [each.annotation for each in ast.walk(node) if isinstance(each, ast.AnnAssign)]
            raised = [each.exc for each in ast.walk(node) if isinstance(each, ast.Raise)]
            outside += [
                extent(each) for each in [*hints, node.returns, *raised, *node.decorator_list] if each
            ]
    return inside, outside


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Functions and methods with their dotted names."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from (
                (f"{node.name}.{each.name}", each) for each in node.body if isinstance(each, ast.FunctionDef)
            )


def extent(node: Any) -> Range:
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)


def count(session: Path) -> tuple[int, list[str]]:
    """Mutants that were killed, and the changed lines of those that survived."""
    killed, survivors = 0, []
    with use_db(str(session), mode=WorkDB.Mode.open) as db:
        for _, result in db.results:
            if result.worker_outcome == WorkerOutcome.SKIPPED:
                continue
            if result.worker_outcome != WorkerOutcome.NORMAL:
                raise RuntimeError(f"{result.worker_outcome}: {result.output}")
            if result.test_outcome == TestOutcome.SURVIVED:
                survivors.append(changed(result.diff or ""))
            else:
                killed += 1
    return killed, survivors


def changed(diff: str) -> str:
    """The removed and the added lines of a diff, as one line."""
    lines = [line for line in diff.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    old = " ".join(line[1:].strip() for line in lines if line[0] == "-")
    new = " ".join(line[1:].strip() for line in lines if line[0] == "+")
    return f"{old}  =>  {new}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
