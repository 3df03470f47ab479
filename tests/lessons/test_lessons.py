"""Each exercise is what its answer key makes of it, fails unsolved, and passes when solved."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

from minipaged.course.exercise import exercise_source
from minipaged.course.manifest import Course, Lesson

Run = Callable[..., tuple[int, str]]
COURSE = Course(Path(__file__).parents[2] / "lessons")
WRONG = sorted(Path(__file__).parent.glob("wrong/*/*.py"))
RIGHT = sorted(Path(__file__).parent.glob("right/*/*.py"))
each_lesson = pytest.mark.parametrize("lesson", COURSE.lessons, ids=lambda lesson: lesson.folder)


@each_lesson
def test_the_exercise_is_its_answer_key_with_the_bodies_taken_out(lesson: Lesson) -> None:
    want = exercise_source(lesson)
    assert lesson.exercise_path.read_text() == want, f"run: minipaged lessons reset {lesson.number}"


@each_lesson
def test_unsolved_it_is_reported_as_not_started_and_nothing_passes(run_lessons: Run, lesson: Lesson) -> None:
    code, printed = run_lessons(lesson.path)
    assert code == 1
    assert f"Next: lesson {lesson.number}, {lesson.title}. It is not started." in printed
    assert f"exercise.py:{first_stub(lesson)}" in printed
    assert f"minipaged lessons hint {lesson.number}" in printed
    assert "Traceback" not in printed and "Error" not in printed
    code, printed = run_lessons(lesson.path, "-v")
    assert "PASSED" not in printed and "ERROR" not in printed


def first_stub(lesson: Lesson) -> int:
    lines = lesson.exercise_path.read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if line.strip() == "raise NotImplementedError")


@each_lesson
def test_the_answer_key_passes(run_lessons: Run, lesson: Lesson) -> None:
    code, printed = run_lessons(lesson.path, "--solutions")
    assert code == 0, printed


@pytest.mark.parametrize("path", WRONG, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_wrong_solution_is_caught_by_words_that_name_its_misconception(
    run_lessons: Run, path: Path, tmp_path: Path
) -> None:
    """A wrong solution's docstring says what is believed, and after "Words:" what the report must say."""
    lesson = COURSE.find(path.parent.name)
    grade = f"--submission={submission(path, lesson, tmp_path)}"
    code, printed = run_lessons(lesson.path, grade, "-x")  # the report tells the first failure
    assert code == 1, printed
    said = " ".join(printed.split()).lower()
    assert "is not written yet" not in said and "not started" not in said
    _, words = path.read_text().split('"""')[1].split("Words:")
    for word in words.split(","):
        assert " ".join(word.split()).lower() in said, printed


@pytest.mark.parametrize("path", RIGHT, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_right_solution_that_is_not_the_key_passes(run_lessons: Run, path: Path, tmp_path: Path) -> None:
    lesson = COURSE.find(path.parent.name)
    grade = f"--submission={submission(path, lesson, tmp_path)}"
    code, printed = run_lessons(lesson.path, grade, "-x")  # the report tells the first failure
    assert code == 0, printed


def submission(path: Path, lesson: Lesson, folder: Path) -> Path:
    """The file to grade: `path` itself or, where it has EDITS (old: new), the answer key with these made."""
    if "\nEDITS = {" not in path.read_text():
        return path
    source = Path(str(lesson.answer().__file__)).read_text()
    for old, new in runpy.run_path(str(path))["EDITS"].items():
        assert source.count(old) == 1, f"{path.name}: {lesson.key} must hold once: {old}"
        source = source.replace(old, new)
    edited = folder / path.name
    edited.write_text(re.sub(r"^from \.", f"from {lesson.key.rpartition('.')[0]}.", source, flags=re.M))
    return edited


@each_lesson
def test_at_least_five_wrong_solutions_are_tried(lesson: Lesson) -> None:
    assert sum(path.parent.name == lesson.folder for path in WRONG) >= 5


@each_lesson
def test_a_lesson_has_what_a_lesson_needs(lesson: Lesson) -> None:
    assert len(lesson.hints) == 3 and lesson.learnt and lesson.vllm
    readme = (lesson.path / "README.md").read_text()
    for heading in ("## Goal", "## The idea", "## What to write", "## What the tests check", "## In vLLM"):
        assert heading in readme, heading
    assert f"about {lesson.minutes} minutes" in readme and lesson.runs_on in readme
    folders = [each.folder for each in COURSE.lessons[: lesson.number - 1]]
    assert set(lesson.needs) <= set(folders)
    assert re.fullmatch(r"\d\d_[a-z_]+", lesson.folder) and int(lesson.folder[:2]) == lesson.number
