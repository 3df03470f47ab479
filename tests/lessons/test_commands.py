"""`minipaged lessons` and `pytest lessons/`, tried on a course of one lesson in a folder of its own."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from solutions import as_submission, key_text

from minipaged.cli.main import main
from minipaged.course.manifest import Course, find_course

LESSONS = Path(__file__).parents[2] / "lessons"
Run = Callable[..., tuple[int, str]]
ANSWER = as_submission(find_course(LESSONS).find("3"), key_text(find_course(LESSONS).find("3")))
RIGHT = (
    f"{ANSWER}\n\nRight = BlockAllocator\n\n\nclass BlockAllocator(Right):\n"  # its methods may be replaced
)


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


def limit(course: Course, seconds: int) -> None:
    manifest = course.root / "manifest.toml"
    manifest.write_text(manifest.read_text() + f"time_limit = {seconds}\n")


def plain(printed: str) -> str:
    """What was printed, without the line breaks."""
    return " ".join(printed.split())


def solve(course: Course) -> None:
    course.find("3").exercise_path.write_text(ANSWER)


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
    lesson = course.find("3")
    assert plain(lesson.learnt) in words and plain(lesson.vllm) in words
    assert "Read on: docs/concepts/allocator.md in minipaged's repository; this copy has no docs" in words
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


def test_where_to_read_on_is_a_path_where_there_is_one(
    course: Course, run_lessons: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = course.root.parent / "docs" / "concepts" / "allocator.md"
    page.parent.mkdir(parents=True)
    page.touch()
    solve(course)
    words = plain(run_lessons(course.root)[1])
    assert "Read on: ../docs/concepts/allocator.md" in words and "repository" not in words


def test_names_of_tests_do_not_begin_another_lesson(tmp_path: Path, run_lessons: Run) -> None:
    """`-k block` is for the lesson that is being written; it names tests of another one as well."""
    root = tmp_path / "some"
    assert main(["lessons", "copy", str(root)]) == 0
    for lesson in Course(root).lessons:
        if lesson.number not in (3, 5):
            shutil.rmtree(lesson.path)
    own = Course(root)
    code, printed = run_lessons(root, "-k", "block")  # neither is begun: the first is
    assert code == 1 and "Next: lesson 3" in printed
    solve(own)
    code, printed = run_lessons(root, "-k", "block")
    assert code == 0 and "Next" not in printed and "checks pass" in printed
    code, printed = run_lessons(root, "-k", "block", "--all")
    assert code == 1 and "Next: lesson 5" in printed
    code, printed = run_lessons(root)
    assert code == 1 and "Next: lesson 5" in printed


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


def test_a_lesson_that_did_not_come_with_the_package_is_not_reset(
    course: Course, capsys: pytest.CaptureFixture[str]
) -> None:
    (course.root / "03_allocator").rename(course.root / "30_mine")
    manifest = course.root / "manifest.toml"
    manifest.write_text(manifest.read_text().replace('"03_allocator"', '"30_mine"'))
    path = course.root / "30_mine" / "exercise.py"
    path.write_text("half = 'done'\n")
    assert main(["lessons", "reset", "30"]) == 2
    error = capsys.readouterr().err
    assert "'30_mine' is not of this minipaged" in error and error.count("\n") == 1
    assert path.read_text() == "half = 'done'\n" and not path.with_suffix(".py.old").exists()


def test_a_copy_starts_unsolved_and_grades_itself(
    course: Course, run_lessons: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    solve(course)
    assert main(["lessons", "copy", str(tmp_path / "copy")]) == 0
    code, printed = run_lessons(tmp_path / "copy")
    assert code == 1 and "is not started" in printed
    assert main(["lessons", "copy", str(tmp_path / "copy")]) == 2
    assert "isn't empty" in capsys.readouterr().err


def test_a_copy_is_refused_where_something_is_in_the_way(
    course: Course, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(course.root)
    for folder, said in (
        (tmp_path / "file", "is a file"),
        (tmp_path / "file" / "sub", f"'{tmp_path / 'file'}' is a file"),
        (course.root, "isn't empty"),
        (course.root / "03_allocator" / "mine", f"'{course.root}', which holds lessons"),
        (tmp_path / "link" / "mine", f"'{course.root}', which holds lessons"),
        (tmp_path / ("x" * 300), "File name too long"),
    ):
        assert main(["lessons", "copy", str(folder)]) == 2
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1
    assert not (course.root / "03_allocator" / "mine").exists()
    assert (tmp_path / "file").read_text() == "mine"


def test_what_to_type_after_a_copy_works_with_a_blank_in_the_name(
    course: Course, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "my [bold] course"
    assert main(["lessons", "copy", str(folder)]) == 0
    assert f"\n  cd '{folder}'\n" in capsys.readouterr().out


@pytest.mark.parametrize("seen", ["-4", "true", "1.5", '"two"', "[]", "1e99"])
def test_a_strange_number_of_hints_is_none(
    course: Course, seen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (course.root / ".progress.json").write_text(f'{{"hints": {{"03_allocator": {seen}}}, "solved": {{}}}}')
    assert main(["lessons", "hint", "3"]) == 0
    assert capsys.readouterr().out.startswith("Hint 1 of 3")


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"hints": 3, "solved": null}'])
def test_a_broken_progress_file_breaks_nothing(
    course: Course, run_lessons: Run, text: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (course.root / ".progress.json").write_bytes(text)
    assert main(["lessons"]) == main(["lessons", "hint", "3"]) == 0
    assert "Hint 1 of 3" in capsys.readouterr().out
    solve(course)
    assert "1 of 1 lessons solved" in run_lessons(course.root)[1]


def test_an_interrupt_ends_watch_without_a_word(course: Course) -> None:
    """Ctrl-C reaches all processes of the terminal; it comes here while an exercise is graded."""
    command = [sys.executable, "-m", "minipaged", "lessons", "watch"]
    watching = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=course.root,
        start_new_session=True,
    )
    assert watching.stdout is not None
    path = course.find("3").exercise_path
    lines = iter(watching.stdout)
    assert any("Waiting for a save" in line for line in lines)
    path.unlink()  # as some editors do for a moment
    assert any("no such file" in line for line in lines)
    assert any("Waiting for a save" in line for line in lines)
    path.write_text("open('running', 'w').close()\nwhile True:\n    pass\n")
    until = time.monotonic() + 30
    while not (course.root / "running").exists():
        assert time.monotonic() < until
        time.sleep(0.1)
    os.killpg(watching.pid, signal.SIGINT)
    assert watching.wait(timeout=15) == 130
    assert "".join(lines).strip() == ""


def test_watch_grades_a_lesson_that_is_solved_on_every_save_too(course: Course) -> None:
    solve(course)
    command = [sys.executable, "-m", "minipaged", "lessons", "watch", "3"]
    watching = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=course.root)
    assert watching.stdout is not None
    lines = iter(watching.stdout)
    assert any("Lesson 3, The allocator: solved." in line for line in lines)
    assert any("Waiting for a save" in line for line in lines)
    course.find("3").exercise_path.write_text("import no_such_thing\n")
    assert any("no_such_thing" in line for line in lines)
    assert any("Waiting for a save" in line for line in lines)
    watching.send_signal(signal.SIGINT)
    assert watching.wait(timeout=15) == 130


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("class BlockAllocator:\n    def allocate(self:\n", "SyntaxError"),
        ("class BlockAllocator:\n    def allocate(self:\n", "importing the exercise"),
        ("import no_such_thing\n", "ModuleNotFoundError"),
        ("import no_such_thing\n", "importing the exercise"),
        ("raise SystemExit(0)\n", "SystemExit: 0"),
        ("", "exercise.py defines no BlockAllocator"),
        (f"{RIGHT}    pass\ndel Right.share\n", "exercise.py defines no BlockAllocator.share"),
        (f"{RIGHT}    def allocate(self, num_blocks=1):\n        return self._fre\n", "no attribute '_fre'"),
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
    limit(course, 1)
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
    code, printed = run_lessons(course.root)
    assert code == 1
    assert "none within 1 s" in printed and "a loop that never ends?" in printed
    number = len(course.find("3").test_functions())
    assert f"0 of {number} checks pass" in printed
    assert f"1 failed, {number - 1} skipped" in run_lessons(course.root, "-v")[1]  # a second, not one a test


def test_a_loop_at_the_top_of_the_file_is_broken_off_too_and_once(course: Course, run_lessons: Run) -> None:
    limit(course, 1)
    course.find("3").exercise_path.write_text(
        "from pathlib import Path\n\n"
        "with Path('runs').open('a') as file:\n    file.write('x')\n"
        "while True:\n    pass\n"
    )
    code, printed = run_lessons(course.root)
    assert code == 1
    assert "importing the exercise" in printed and "none within 1 s" in printed
    assert "Open   03_allocator/exercise.py:" in printed
    assert (course.root / "runs").read_text() == "x"


@pytest.mark.parametrize("wrong", ["import no_such_thing\n", "import pytest\npytest.skip('no')\n", ""])
def test_no_letters_of_pytest_are_printed(course: Course, run_lessons: Run, wrong: str) -> None:
    course.find("3").exercise_path.write_text(wrong)
    lines = run_lessons(course.root)[1].splitlines()
    assert next(line for line in lines if line).strip() == "□  0 of 1 lessons solved"


@pytest.mark.parametrize(
    "end",
    [
        "import pytest; pytest.skip('no', allow_module_level=True)",
        "import pytest; pytest.xfail('no')",
        "import pytest; pytest.exit('no', returncode=0)",
        "import unittest; raise unittest.SkipTest('no')",
    ],
)
def test_what_ends_a_test_early_is_a_failure(course: Course, run_lessons: Run, end: str) -> None:
    path = course.find("3").exercise_path
    path.write_text(f"{end}\n")
    code, printed = run_lessons(course.root)
    assert code == 1 and "0 of 1 lessons solved" in printed
    assert "importing the exercise" in printed and ": no" in printed
    path.write_text(f"{RIGHT}    def free(self, blocks):\n        {end}\n")
    line = RIGHT.count("\n") + 2
    code, printed = run_lessons(course.root)
    assert code == 1 and "0 of 1 lessons solved" in printed
    assert "what ends a test early gives no answer" in printed and f"exercise.py:{line}" in printed


def test_an_interrupt_solves_nothing(course: Course, run_lessons: Run) -> None:
    path = course.find("3").exercise_path
    path.write_text("raise KeyboardInterrupt\n")
    assert run_lessons(course.root)[0] == pytest.ExitCode.INTERRUPTED
    path.write_text(f"{RIGHT}    def free(self, blocks):\n        raise KeyboardInterrupt\n")
    code, printed = run_lessons(course.root)
    assert code == pytest.ExitCode.INTERRUPTED and "0 of 1 lessons solved" in printed


def test_an_exercise_that_is_gone_can_be_made_again(course: Course, run_lessons: Run) -> None:
    course.find("3").exercise_path.unlink()
    code, printed = run_lessons(course.root)
    assert code == 1
    assert "no such file" in printed and "`minipaged lessons reset 3` makes it anew" in plain(printed)
    assert main(["lessons", "reset", "3"]) == 0
    assert "is not started" in run_lessons(course.root)[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--submission=gone.py"], "--submission=gone.py does not exist"),
        (["--submission=03_allocator"], "--submission=03_allocator is a folder"),
        (["--submission=manifest.toml"], "its name must end in .py"),
        (["--submission=conftest.py", "--solutions"], "--submission and --solutions: name one"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    course: Course, run_lessons: Run, arguments: list[str], said: str
) -> None:
    code, printed = run_lessons(course.root, *arguments)
    assert code == pytest.ExitCode.USAGE_ERROR
    assert f"ERROR: {said}" in printed or said in printed
    assert "lessons solved" not in printed and "Traceback" not in printed


def test_a_submission_is_for_one_lesson(run_lessons: Run) -> None:
    answer = LESSONS / "03_allocator" / "exercise.py"
    code, printed = run_lessons(
        LESSONS / "03_allocator", LESSONS / "05_copy_on_write", f"--submission={answer}"
    )
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "--submission is for one lesson, not for 03_allocator, 05_copy_on_write" in printed


def test_other_tests_beside_the_lessons_are_refused(course: Course, run_lessons: Run) -> None:
    (course.root / "test_mine.py").write_text("def test_it():\n    pass\n")
    for start in (course.root, course.root.parent):  # inside the lessons, and outside
        code, printed = run_lessons(start, f"--rootdir={start}", same_process=False)
        assert code == pytest.ExitCode.USAGE_ERROR
        assert "the lessons are graded by themselves" in printed


def test_several_processes_are_refused(course: Course) -> None:
    command = [sys.executable, "-m", "pytest", "-n"]
    run = subprocess.run([*command, "2"], capture_output=True, text=True, cwd=course.root, check=False)
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    assert "in one process: leave out -n" in run.stderr
    run = subprocess.run([*command, "0"], capture_output=True, text=True, cwd=course.root, check=False)
    assert run.returncode == 1 and "is not started" in run.stdout


def test_a_run_of_nothing_and_a_test_file_that_is_broken_are_told(course: Course, run_lessons: Run) -> None:
    code, printed = run_lessons(course.root, "-k", "no_such_test")
    assert code == pytest.ExitCode.NO_TESTS_COLLECTED and "Nothing was graded" in printed
    (course.root / "03_allocator" / "test_more.py").write_text("import no_such_thing\n")
    code, printed = run_lessons(course.root)
    assert code == 2 and "No module named 'no_such_thing'" in printed


def test_all_goes_on_after_a_lesson_that_is_not_solved(
    tmp_path: Path, run_lessons: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From another folder, by an absolute path."""
    assert main(["lessons", "copy", str(tmp_path / "all")]) == 0
    for lesson in Course(tmp_path / "all").lessons:
        if lesson.number not in (1, 4, 5):
            shutil.rmtree(lesson.path)
    own = Course(tmp_path / "all")
    own.find("4").exercise_path.write_text(as_submission(own.find("4"), key_text(own.find("4"))))
    own.find("5").exercise_path.write_text("")
    monkeypatch.chdir(tmp_path.parent)
    printed = run_lessons(own.root)[1]
    assert "·  4  Attention over blocks     about" in printed and "checks pass" not in printed
    printed = run_lessons(own.root, "--all")[1]
    assert "1 of 13 lessons solved" in printed and "✓  4" in printed and "✗  5" in printed
    printed = run_lessons(own.root / "04_paged_attention", own.root / "05_copy_on_write")[1]
    assert "✓  4" in printed and "exercise.py defines no copy_on_write" in printed
    printed = run_lessons(own.root / "01_kv_cache_size", own.root / "05_copy_on_write", "-k", "never")[1]
    assert "0 of 0" not in printed


def test_without_v_no_test_names_are_printed_and_with_v_they_are(course: Course, run_lessons: Run) -> None:
    assert "test_" not in run_lessons(course.root)[1]
    assert "test_all_or_nothing FAILED" in run_lessons(course.root, "-v")[1]


def test_what_an_exercise_says_cannot_steer_a_terminal(course: Course) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    course.find("3").exercise_path.write_text("raise ValueError('\\x1b]0;mine\\x07 [x] C:\\\\')\n")
    with contextlib.redirect_stdout(Terminal()) as printed:
        pytest.main([str(course.root), "-p", "no:cacheprovider", "-p", "no:benchmark", "-p", "no:xdist"])
    assert r"\x1b]0;mine\x07 [x] C:\ " in f"{printed.getvalue()} ".replace("\n", " ")
    assert "\x1b]0;" not in printed.getvalue() and "\x07" not in printed.getvalue()
