"""`minipaged lessons` and `pytest lessons/`, tried on a course of one lesson in a folder of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from minipaged.cli import main
from minipaged.course.manifest import Course, find_course
from minipaged.reference import allocator

LESSONS = Path(__file__).parents[2] / "lessons"
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Course:
    """Lesson 3 alone, as `copy` makes it, and the working directory."""
    root = tmp_path / "mine"
    shutil.copytree(LESSONS / "03_allocator", root / "03_allocator")
    for name in ("conftest.py", "pytest.ini"):
        shutil.copy(LESSONS / name, root)
    entries = (LESSONS / "manifest.toml").read_text().split("[[lesson]]")
    entry = next(entry for entry in entries if '"03_allocator"' in entry.partition("title")[0])
    (root / "manifest.toml").write_text(f"[[lesson]]{entry}")
    monkeypatch.chdir(root)
    return Course(root)


def solve(course: Course) -> None:
    course.find("3").exercise_path.write_text(f"from {allocator.__name__} import BlockAllocator\n")


def test_the_course_is_found_from_inside_a_lesson_too(
    course: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_course().root == course.root
    monkeypatch.chdir(course.root / "03_allocator")
    assert find_course().root == course.root
    monkeypatch.chdir(LESSONS.parent)
    assert find_course().root == LESSONS


def test_a_pass_says_what_was_learnt_once_and_a_later_change_reopens_the_lesson(
    course: Course, run_lessons: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    solve(course)
    code, printed = run_lessons(course.root)
    assert code == 0
    assert "Lesson 3, The allocator: solved." in printed
    words = " ".join(printed.split())
    assert "a stack of free ids and a count per block" in words
    assert "In vLLM: `BlockPool`" in words and "Read on: docs/concepts/allocator.md" in words
    assert main(["lessons"]) == 0
    assert "1 of 1 lessons solved" in capsys.readouterr().out
    with course.find("3").exercise_path.open("a") as file:
        file.write("# a thought\n")
    assert main(["lessons"]) == 0
    assert "0 of 1 lessons solved" in capsys.readouterr().out


def test_only_some_tests_do_not_solve_a_lesson(course: Course, run_lessons: Run) -> None:
    solve(course)
    code, printed = run_lessons(course.root, "-k", "all_or_nothing")
    assert code == 0
    assert "0 of 1 lessons solved" in printed


def test_one_test_by_its_id_as_an_editor_runs_it(course: Course, run_lessons: Run) -> None:
    test = course.root / "03_allocator" / "test_allocator.py::test_all_or_nothing"
    code, printed = run_lessons(test)
    assert code == 1 and "is not started" in printed
    solve(course)
    code, printed = run_lessons(test)
    assert code == 0 and "0 of 1 lessons solved" in printed


def test_each_call_for_a_hint_climbs_one_rung(course: Course, capsys: pytest.CaptureFixture[str]) -> None:
    for number in (1, 2, 3, 3):
        assert main(["lessons", "hint", "allocator"]) == 0
        printed = capsys.readouterr().out
        assert printed.count("of 3") == number
    assert "minipaged.reference.allocator" in printed


@pytest.mark.parametrize("name", ["17", "0", "alocator", "", "-3"])
def test_an_unknown_lesson_is_refused(course: Course, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lessons", "hint", "--", name]) == 2
    assert "no lesson" in capsys.readouterr().err


def test_reset_keeps_what_was_written(course: Course, capsys: pytest.CaptureFixture[str]) -> None:
    path = course.find("3").exercise_path
    start = path.read_text()
    assert main(["lessons", "reset", "3"]) == 0
    assert "nothing to do" in capsys.readouterr().out
    path.write_text("half = 'done'\n")
    assert main(["lessons", "reset", "3"]) == 0
    assert path.read_text() == start
    assert path.with_suffix(".py.old").read_text() == "half = 'done'\n"


def test_a_copy_starts_unsolved_and_grades_itself(
    course: Course, run_lessons: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    solve(course)
    assert main(["lessons", "copy", str(tmp_path / "copy")]) == 0
    code, printed = run_lessons(tmp_path / "copy")
    assert code == 1 and "is not started" in printed
    assert main(["lessons", "copy", str(tmp_path / "copy")]) == 2
    assert "isn't empty" in capsys.readouterr().err


def test_watch_grades_and_ends_when_all_is_solved(course: Course) -> None:
    command = [sys.executable, "-m", "minipaged", "lessons", "watch", "3"]
    watching = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=course.root)
    assert watching.stdout is not None
    for line in watching.stdout:
        if "Waiting for a save" in line:
            solve(course)
    assert watching.wait(timeout=60) == 0


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("class BlockAllocator:\n    def allocate(self:\n", "SyntaxError"),
        ("import no_such_thing\n", "ModuleNotFoundError"),
        ("", "AttributeError"),
        ("def f(x):\n    return f(x)\nBlockAllocator = f\n", "RecursionError"),
    ],
)
def test_a_broken_file_is_told_in_one_sentence(
    course: Course, run_lessons: Run, written: str, said: str
) -> None:
    course.find("3").exercise_path.write_text(written)
    code, printed = run_lessons(course.root)
    assert code == 1
    assert said in printed and "Traceback" not in printed
    assert "exercise.py" in printed


def test_a_loop_that_never_ends_is_broken_off(course: Course, run_lessons: Run) -> None:
    manifest = course.root / "manifest.toml"
    manifest.write_text(manifest.read_text() + "time_limit = 1\n")
    course.find("3").exercise_path.write_text(
        "from minipaged.reference.allocator import BlockAllocator as Right\n\n"
        "class BlockAllocator(Right):\n"
        "    def allocate(self, num_blocks=1):\n"
        "        try:\n"
        "            while num_blocks >= 0:\n"
        "                pass\n"
        "        except Exception:\n"
        "            return []\n"
    )
    code, printed = run_lessons(course.root, "-k", "from_the_top")
    assert code == 1
    assert "none within 1 s" in printed and "a loop that never ends?" in printed


def test_without_v_no_test_names_are_printed_and_with_v_they_are(course: Course, run_lessons: Run) -> None:
    assert "test_" not in run_lessons(course.root)[1]
    assert "test_all_or_nothing FAILED" in run_lessons(course.root, "-v")[1]
