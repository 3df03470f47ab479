"""A lesson with parts: one exercise, graded part by part in order. Tried on a copy of lesson 7 alone."""

from __future__ import annotations

import importlib
import operator
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from solutions import COURSE, as_submission, key_text

from minipaged.cli.main import main
from minipaged.course.exercise import starting_text
from minipaged.course.manifest import Course, Lesson
from minipaged.reference import prefix_cache, prefix_chain

Run = Callable[..., tuple[int, str]]
LESSON = COURSE.find("7")
CHAIN, CACHE = "test_prefix_chain.py", "test_prefix_cache.py"
NUM_CHAIN, NUM_CACHE = [(LESSON.path / name).read_text().count("\ndef test_") for name in (CHAIN, CACHE)]
START, KEY = starting_text(LESSON), as_submission(LESSON, key_text(LESSON))
CUT = "class PrefixCache:"  # what stands before it belongs to part 1
HALF = KEY.partition(CUT)[0] + CUT + START.partition(CUT)[2]
WRONG_CHAIN = HALF.replace("return self._links[index + 1]", "return self._links[index]")
CHAIN_PASSES = f"✓ the chain {NUM_CHAIN} of {NUM_CHAIN} checks pass"
NEW = "Lesson 7, part 1, the chain: passes."


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Course:
    """Lesson 7 alone, and the working directory."""
    root = tmp_path / "mine"
    assert main(["lessons", "copy", str(root)]) == 0
    for lesson in COURSE.lessons:
        if lesson.number != 7:
            shutil.rmtree(root / lesson.folder)
    (entry,) = [each for each in manifest_entries() if 'folder = "07_prefix_cache"' in each]
    (root / "manifest.toml").write_text(f"[[lesson]]{entry}")
    monkeypatch.chdir(root)
    return Course(root)


def manifest_entries() -> list[str]:
    return (COURSE.root / "manifest.toml").read_text().split("[[lesson]]")


def grade(run_lessons: Run, course: Course, text: str, *arguments: str, tests: str = "") -> tuple[int, str]:
    """Write the exercise, grade it, and return the exit code and what was printed, without line breaks."""
    course.find("7").exercise_path.write_text(text)
    code, printed = run_lessons(course.find("7").path / tests, *arguments)
    return code, plain(printed)


def plain(printed: str) -> str:
    return " ".join(printed.split())


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What `minipaged lessons` and further words print."""
    capsys.readouterr()
    assert main(["lessons", *words]) == 0
    return plain(capsys.readouterr().out)


def test_at_the_start_the_report_asks_for_part_one_alone(course: Course, run_lessons: Run) -> None:
    code, printed = grade(run_lessons, course, START)
    assert code == 1 and "Next: lesson 7, The prefix cache. It is not started." in printed
    assert "Part 1 of 2: the chain. To be written: chain_hash, PrefixChain.__getitem__. Hint" in printed


def test_a_failure_of_part_one_comes_first_and_part_two_is_left_out(course: Course, run_lessons: Run) -> None:
    code, printed = grade(run_lessons, course, WRONG_CHAIN)
    assert code == 1 and "Lesson 7, The prefix cache, part 1, the chain" in printed
    assert "_links begins with the root" in printed
    assert "✗ the chain" in printed and "· the cache not graded" in printed and "passes." not in printed


def test_all_grades_part_two_too_and_still_shows_part_one_first(course: Course, run_lessons: Run) -> None:
    text = START.partition(CUT)[0] + CUT + KEY.partition(CUT)[2]
    text = text.replace("= allocator\n", "= allocator.gone\n")  # part 1 is not written, part 2 is wrong
    code, printed = grade(run_lessons, course, text, "--all")
    assert code == 1 and f"✗ the chain 0 of {NUM_CHAIN} checks pass ✗ the cache 0 of {NUM_CACHE}" in printed
    assert "part 1, the chain chain_hash is not written yet" in printed


def test_the_first_pass_of_part_one_is_told_once(course: Course, run_lessons: Run) -> None:
    code, printed = grade(run_lessons, course, HALF)
    assert code == 1 and f"{CHAIN_PASSES} ✗ the cache 0 of {NUM_CACHE} checks pass" in printed
    assert f"{NUM_CHAIN} of {NUM_CHAIN + NUM_CACHE} checks pass ← next {CHAIN_PASSES}" in printed
    assert f"{NEW} Next: part 2, the cache. To be written: PrefixCache.lookup," in printed
    assert "Lesson 7, The prefix cache, part 2, the cache publish is not written yet." in printed
    code, printed = grade(run_lessons, course, HALF)
    assert code == 1 and CHAIN_PASSES in printed and NEW not in printed
    grade(run_lessons, course, WRONG_CHAIN)
    assert NEW in grade(run_lessons, course, HALF)[1]


def test_both_at_once_solve_the_lesson_without_a_word_on_parts(course: Course, run_lessons: Run) -> None:
    code, printed = grade(run_lessons, course, KEY)
    assert code == 0 and "Lesson 7, The prefix cache: solved." in printed
    assert f"{CHAIN_PASSES} ✓ the cache {NUM_CACHE} of {NUM_CACHE} checks pass" in printed
    assert "part 1" not in printed and "part 2" not in printed


def test_a_test_file_grades_its_part_alone(course: Course, run_lessons: Run) -> None:
    code, printed = grade(run_lessons, course, HALF, tests=CHAIN)
    assert code == 0 and f"{CHAIN_PASSES} · the cache not graded" in printed and NEW in printed
    code, printed = grade(run_lessons, course, KEY, tests=CACHE)
    assert code == 0 and f"· the chain not graded ✓ the cache {NUM_CACHE} of {NUM_CACHE}" in printed
    assert "0 of 1 lessons solved" in printed
    told = "Lesson 7, part 2, the cache: passes. To grade all parts together: pytest 07_prefix_cache"
    assert told in printed


def test_part_one_is_graded_before_part_two_however_they_are_named(course: Course, run_lessons: Run) -> None:
    course.find("7").exercise_path.write_text(WRONG_CHAIN)
    folder = course.find("7").path
    printed = plain(run_lessons(folder / CACHE, folder / CHAIN)[1])
    assert "✗ the chain" in printed and "· the cache not graded" in printed


def test_a_hint_is_of_the_part_that_is_open(
    course: Course, run_lessons: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "Hint 1 of 3: the chain" in shown(capsys, "hint", "7")
    assert "Hint 2 of 3: the chain" in shown(capsys, "hint", "7")
    grade(run_lessons, course, HALF)
    printed = shown(capsys, "hint", "7")
    assert "Hint 1 of 3: the cache" in printed and "Hint 2" not in printed
    shown(capsys, "hint", "7")
    assert "The answer itself: minipaged.reference.prefix_cache" in shown(capsys, "hint", "7")
    grade(run_lessons, course, WRONG_CHAIN)
    printed = shown(capsys, "hint", "7")
    assert "Hint 3 of 3: the chain" in printed
    assert "The answer itself: minipaged.reference.prefix_chain" in printed


def test_progress_shows_the_parts_of_a_lesson_that_is_half_done(
    course: Course, run_lessons: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "the chain" not in shown(capsys)
    grade(run_lessons, course, WRONG_CHAIN)
    assert "the chain" not in shown(capsys)
    grade(run_lessons, course, HALF)
    assert "✓ the chain passed · the cache" in shown(capsys)
    shown(capsys, "reset", "7")
    assert "the chain" not in shown(capsys)
    grade(run_lessons, course, KEY)
    assert "✓ 7 The prefix cache" in (printed := shown(capsys)) and "the chain" not in printed


def test_a_submission_leaves_no_trace(course: Course, run_lessons: Run, tmp_path: Path) -> None:
    (tmp_path / "half.py").write_text(HALF)
    code, printed = run_lessons(course.find("7").path, f"--submission={tmp_path / 'half.py'}")
    assert code == 1 and CHAIN_PASSES in plain(printed) and NEW not in plain(printed)
    assert not (course.root / ".progress.json").exists()


def test_a_loop_in_part_one_is_waited_for_once(course: Course, run_lessons: Run) -> None:
    manifest = course.root / "manifest.toml"
    manifest.write_text(
        manifest.read_text().replace("[[lesson.parts]]", "time_limit = 1\n[[lesson.parts]]", 1)
    )
    start = HALF.replace("while len(self._links) <= index + 1:", "while True:\n            continue")
    code, printed = grade(run_lessons, course, start, "--all")
    assert code == 1 and "none within 1 s" in printed and "· the cache not graded" in printed


@pytest.mark.parametrize(
    "lesson", [each for each in COURSE.lessons if each.parts], ids=lambda lesson: lesson.folder
)
def test_parts_divide_a_lesson(lesson: Lesson) -> None:
    """Each test file grades one part. What a part asks for is defined in its key."""
    assert len(lesson.parts) >= 2 and lesson.write == [name for part in lesson.parts for name in part.write]
    tests = sorted(part.tests for part in lesson.parts)
    assert tests == sorted(path.name for path in lesson.path.glob("test_*.py"))
    for part in lesson.parts:
        module = importlib.import_module(part.key)
        assert {operator.attrgetter(name)(module).__module__ for name in part.write} == {part.key}
        assert len(part.hints) == 3
    names = [line for line in starting_text(lesson).splitlines() if line.startswith(("class ", "def "))]
    assert names == [line for line in key_text(lesson).splitlines() if line.startswith(("class ", "def "))]


def test_the_answer_has_the_names_of_all_parts() -> None:
    answer = LESSON.answer()
    assert answer.chain_hash is prefix_chain.chain_hash and answer.PrefixChain is prefix_chain.PrefixChain
    assert answer.PrefixCache is prefix_cache.PrefixCache
    assert all(operator.attrgetter(name)(answer) for name in LESSON.write)
    assert COURSE.find("3").answer() is importlib.import_module("minipaged.reference.allocator")
