"""Each exercise fails unsolved and passes when solved; wrong solutions are caught by words that help."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from solutions import COURSE, Solution, as_submission, edited, key_text, solutions

from minipaged.course.manifest import Lesson

Run = Callable[..., tuple[int, str]]
WRONG = [solution for lesson in COURSE.lessons for solution in solutions("wrong", lesson)]
RIGHT = [solution for lesson in COURSE.lessons for solution in solutions("right", lesson)]
VLLM = "vLLM 0.32 (November 2026)"  # what the course compares itself with, everywhere
NUM_WRONG = {1: 28, 2: 39, 3: 31, 4: 52, 5: 47, 6: 39, 7: 84, 8: 54, 9: 58, 10: 51, 11: 72, 12: 30, 13: 43}
each_lesson = pytest.mark.parametrize("lesson", COURSE.lessons, ids=lambda lesson: lesson.folder)


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


def test_the_answer_keys_pass_where_they_stand(run_lessons: Run) -> None:
    """Two lessons show the way of --solutions; that each key passes is shown by its copies below."""
    code, printed = run_lessons(*(lesson.path for lesson in COURSE.lessons[:2]), "--solutions")
    assert code == 0, printed


@each_lesson
def test_a_copy_of_the_key_passes_as_a_submission(run_lessons: Run, lesson: Lesson, tmp_path: Path) -> None:
    """So what a wrong solution is caught by is its edit."""
    copy = tmp_path / "copy.py"
    copy.write_text(as_submission(lesson, key_text(lesson)))
    code, printed = run_lessons(lesson.path, f"--submission={copy}")
    assert code == 0, printed


@pytest.mark.parametrize("solution", WRONG, ids=str)
def test_a_wrong_solution_is_caught_by_words_that_name_its_misconception(
    run_lessons: Run, solution: Solution, tmp_path: Path
) -> None:
    grade = f"--submission={solution.write(tmp_path)}"
    code, printed = run_lessons(solution.lesson.path, grade, "-x")  # the report tells the first failure
    assert code == 1, printed
    said = plain(printed)
    assert "is not written yet" not in said and "not started" not in said
    for words in solution.words:
        assert plain(words) in said, printed


def plain(text: str) -> str:
    """The text without line breaks and capital letters."""
    return " ".join(text.split()).lower()


@pytest.mark.parametrize("solution", RIGHT, ids=str)
def test_a_right_solution_that_is_not_the_key_passes(
    run_lessons: Run, solution: Solution, tmp_path: Path
) -> None:
    code, printed = run_lessons(solution.lesson.path, f"--submission={solution.write(tmp_path)}", "-x")
    assert code == 0, printed


def test_no_wrong_solution_is_lost() -> None:
    """As many as there are; whoever adds one raises the number of its lesson."""
    assert Counter(solution.lesson.number for solution in WRONG) == NUM_WRONG
    assert all(solution.belief and solution.words for solution in WRONG)


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        ("-    b\n+    d", "this once, to be changed, not 2 times"),
        ("-    x\n+    d", "this once, to be changed, not 0 times"),
        ("-    c\n+    d\n@@\n-    c\n+    e", "this once, to be changed, not 0 times"),
        ("-   b\n+    d", "this once, to be changed, not 0 times"),
        ("     a", "this once, to be changed, not 1 times"),
        ("b", "begins with '-', '+' or ' ', not as 'b'"),
    ],
)
def test_an_edit_must_find_each_of_its_places_once(edit: str, told: str) -> None:
    with pytest.raises(ValueError, match=f"^mine: .*{re.escape(told)}"):
        edited("    a\n    b\n    c\n    b\n", edit, "mine")


def test_a_copy_of_a_key_imports_from_the_keys_package() -> None:
    lesson = replace(COURSE.find("3"), key="a.b.c")
    text = "from .x import y\nfrom ..z.u import w\n    from . import v\nclass OneError(Exception): ...\n"
    assert as_submission(lesson, text) == (
        "from a.b.x import y\nfrom a.z.u import w\n    from a.b import v\nclass OneError(Exception): ...\n"
        "\n\nfrom a.b.c import OneError\n"
    )


def test_an_edit_changes_whole_lines_in_several_places() -> None:
    edit = "-    b\n-\n+    d\n     c\n@@\n+    0\n     a\n"
    assert edited("    a\n    b\n\n    c\n    bb\n", edit, "mine") == "    0\n    a\n    d\n    c\n    bb\n"


@each_lesson
def test_a_lesson_has_what_a_lesson_needs(lesson: Lesson) -> None:
    assert all(len(hinted.hints) == 3 for hinted in lesson.parts or [lesson])
    assert lesson.learnt and lesson.vllm
    readme = (lesson.path / "README.md").read_text()
    for heading in ("## Goal", "## The idea", "## What to write", "## What the tests check", "## In vLLM"):
        assert heading in readme, heading
    assert f"about {lesson.minutes} minutes" in readme and lesson.runs_on in readme
    folders = [each.folder for each in COURSE.lessons[: lesson.number - 1]]
    assert set(lesson.needs) <= set(folders)
    assert re.fullmatch(r"\d\d_[a-z_]+", lesson.folder) and int(lesson.folder[:2]) == lesson.number
    *_, in_vllm, questions = readme.split("\n## ")
    assert in_vllm.startswith("In vLLM\n") and questions.startswith("Two questions\n")
    answered = r"<details><summary>.+?\?</summary>\n\n.+?\n\n</details>\n"
    assert len(re.findall(answered, questions, re.DOTALL)) == 2 == questions.count("<details>")
    for text in (in_vllm, lesson.vllm):
        assert VLLM in " ".join(text.split())
