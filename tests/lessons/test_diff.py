"""`minipaged lessons diff`: when it is refused, how two versions are shown, and what they cost."""

from __future__ import annotations

import io
from pathlib import Path
from types import ModuleType

import pytest
from solutions import COURSE, Solution, as_submission, key_text, solutions

from minipaged.cli.main import main
from minipaged.course import progress
from minipaged.course.costs import WORKLOADS, costs, kernel_costs
from minipaged.course.diff import compared, show_function
from minipaged.course.exercise import load_exercise
from minipaged.course.manifest import Course, Lesson
from minipaged.course.memory_map import can_record
from minipaged.course.versions import are_equal, function_of, source_of
from minipaged.errors import InvalidRequestError
from minipaged.terminal.console import DataConsole

interpreted = pytest.mark.skipif(not can_record(), reason="kernels are compiled here")


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Course:
    """A copy of the lessons, and the working directory."""
    root = tmp_path / "mine"
    assert main(["lessons", "copy", str(root)]) == 0
    monkeypatch.chdir(root)
    return Course(root)


def solve(course: Course, number: str, text: str) -> Lesson:
    lesson = course.find(number)
    lesson.exercise_path.write_text(text)
    progress.note(course, [lesson], [])
    return lesson


def right(number: str, name: str) -> Solution:
    return next(each for each in solutions("right", COURSE.find(number)) if each.name == name)


def printed_function(name: str, mine: str, key: str, width: int) -> list[str]:
    console = DataConsole(width=width, file=io.StringIO())
    show_function(name, mine, key, console)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_an_unsolved_lesson_is_refused_and_its_key_is_not_told(
    course: Course, capsys: pytest.CaptureFixture[str]
) -> None:
    solve(course, "3", "half = 'done'\n").exercise_path.write_text("half = 'changed since'\n")
    capsys.readouterr()
    for number in ("3", "4"):
        assert main(["lessons", "diff", number]) == 2
        printed = capsys.readouterr()
        assert f"lesson {number} is not solved yet: its key would give it away\n" in printed.err
        assert printed.out == ""


def test_the_key_itself_costs_the_same(course: Course, capsys: pytest.CaptureFixture[str]) -> None:
    lesson = COURSE.find("3")
    text = as_submission(lesson, key_text(lesson)).replace(
        "        unused = []\n", "        unused = []  # of [b]\n"
    )
    solve(course, "3", text)
    assert main(["lessons", "diff", "allocator"]) == 0
    printed = capsys.readouterr().out
    assert [f"{name}: yours equals the key's" in printed for name in lesson.write] == [True] * 3
    assert "1.00 times the key's: the same" in printed and "def " not in printed


def test_a_slower_solution_is_shown_beside_the_key_and_costs_more(
    course: Course, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lesson = solve(course, "3", right("3", "slices_and_undone_changes").write(tmp_path).read_text())
    assert main(["lessons", "diff", "3"]) == 0
    printed = capsys.readouterr().out
    assert "is_double = any(" in printed and "in Counter(blocks).items():" in printed
    assert "BlockAllocator.share: yours equals the key's" in printed
    (numbers,) = [line.split() for line in printed.splitlines() if line.startswith("operations")]
    mine, key = (int(number.replace(",", "")) for number in numbers[1:3])
    assert mine > key and " ".join(numbers[3:]) == f"{mine / key:.2f} times the key's: more"
    assert lesson.folder in progress.solved(course)


def lesson_of_two_calls(course: Course, turns: int) -> Lesson:
    """Lesson 1 with one test, and an exercise that counts to `turns` in the function that is tested."""
    lesson = course.find("1")
    text = as_submission(lesson, key_text(lesson))
    loop = f"    for _ in range({turns}):\n        pass\n"
    last = "    return memory // (block_size * token_bytes)\n"
    assert last in text
    given = "\n\ndef given():\n    for _ in range(1000):\n        pass\n"
    lesson.exercise_path.write_text(text.replace(last, loop + last) + given)
    (test,) = lesson.path.glob("test_*.py")
    test.write_text(
        "def test_it(exercise):\n"
        "    exercise.given()\n"
        "    for _ in range(1000):\n        pass\n"
        "    assert exercise.blocks_that_fit(100, 4, 2) == exercise.blocks_that_fit(96, 4, 2) == 12\n"
    )
    return lesson


def test_operations_by_hand(course: Course, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn of an empty loop takes three instructions: FOR_ITER, STORE_FAST and JUMP_BACKWARD.

    The function is called twice. Loops of the test and of a function that is given don't count.
    """
    counted = []
    for turns in (10, 11, 30):
        lesson = lesson_of_two_calls(course, turns)
        counted.append(costs(lesson, lesson.exercise_path, lesson.answer())["operations"])
    assert counted[1] - counted[0] == 2 * 3
    assert counted[2] - counted[0] == 2 * 20 * 3
    assert 2 * 10 * 3 < counted[0] < 2 * 10 * 3 + 100


def test_operations_of_a_test_that_fails_are_refused(course: Course) -> None:
    lesson = lesson_of_two_calls(course, 10)
    lesson.exercise_path.write_text("def blocks_that_fit(*numbers):\n    return 0\n")
    with pytest.raises(InvalidRequestError, match=r"^lesson 1: no operations are counted"):
        costs(lesson, lesson.exercise_path, lesson.answer())


def test_an_exercise_that_can_not_be_imported_any_more_is_refused(
    course: Course, capsys: pytest.CaptureFixture[str]
) -> None:
    solve(course, "3", "import no_such_thing\n")
    assert main(["lessons", "diff", "3"]) == 2
    error = capsys.readouterr().err
    assert "exercise.py can't be imported: ModuleNotFoundError: No module named 'no_such_thing'" in error
    assert error.count("\n") == 1


@interpreted
def test_bytes_of_the_slot_mapping_by_hand() -> None:
    """Eight tokens, each a program of the second launch; the first launch has one program."""
    assert kernel_costs(WORKLOADS["slot_mapping_kernel"], COURSE.find("10").answer()) == {
        "launches": 2,
        "programs": 1 + 8,
        # position, sequence and table entry; then slot, and K and V of two heads of 4 float32
        "bytes read": 8 * (8 + 8 + 4) + 8 * (8 + 2 * 2 * 4 * 4),
        "bytes written": 8 * 8 + 8 * (2 * 2 * 4 * 4),
    }


@interpreted
def test_bytes_of_paged_decode_by_hand(tmp_path: Path) -> None:
    """Contexts of 300 and 20 tokens: three splits of 256 have keys. There are 4 heads and 2 KV heads."""
    vector = 16 * 4
    queries, keys, parts = 3 * 4 * vector, 2 * (300 + 20) * (4 + 2 * vector), 3 * 4 * (vector + 2 * 4)
    programs = 2 * 2 * 2 + 2 * 4
    workload = WORKLOADS["paged_decode_kernel"]
    expected = {
        "launches": 2,
        "programs": programs,
        "bytes read": programs * 4 + queries + keys + parts,  # each reads a context's length
        "bytes written": parts + 2 * 4 * vector,
    }
    assert kernel_costs(workload, COURSE.find("11").answer()) == expected
    # This solution reads the best score of each split twice.
    expected["bytes read"] += 3 * 4 * 4
    two_passes = right("11", "two_passes_and_loads_without_other").write(tmp_path)
    assert kernel_costs(workload, load_exercise(two_passes)) == expected


@interpreted
def test_bytes_of_block_copies_by_hand() -> None:
    """Two pairs, 256 threads for each: a thread reads two ids, and each word moves once."""
    assert kernel_costs(WORKLOADS["block_copy_kernel"], COURSE.find("12").answer()) == {
        "launches": 1,
        "threads": 2 * 256,
        "bytes read": 2 * 256 * 2 * 8 + 2 * 600 * 8,
        "bytes written": 2 * 600 * 8,
    }


@interpreted
def test_a_kernel_is_shown_with_its_launches(course: Course, capsys: pytest.CaptureFixture[str]) -> None:
    lesson = COURSE.find("10")
    solve(course, "10", as_submission(lesson, key_text(lesson)))
    assert main(["lessons", "diff", "10"]) == 0
    rows = {line.split("   ")[0].strip(): line.split() for line in capsys.readouterr().out.splitlines()}
    assert rows["bytes read"][2:] == ["736", "736", "1.00", "times", "the", "key's:", "the", "same"]
    assert rows["programs"][1:3] == ["9", "9"]


MINE = "def f(x):\n    # [b]mine[/b]\n    return x + x"
KEY = "def f(x):\n    return 2 * x"


def test_a_narrow_terminal_shows_one_version_below_the_other() -> None:
    expected = ["", "f", "--- yours", *MINE.splitlines(), "--- the key's", *KEY.splitlines()]
    assert printed_function("f", MINE, KEY, 119) == expected


def test_a_wide_terminal_shows_both_versions_side_by_side() -> None:
    lines = printed_function("f", MINE, KEY, 120)
    pairs = zip(MINE.splitlines(), [*KEY.splitlines(), ""], strict=True)
    at = lines[2].index("the key's")
    assert lines[:2] == ["", "f"] and lines[3:] == [f"{mine:{at}}{key}".rstrip() for mine, key in pairs]


def test_a_long_line_goes_on_further_to_the_right_and_loses_nothing() -> None:
    long = "    return " + " + ".join(f"number_{i}" for i in range(12))
    lines = printed_function("f", f"def f():\n{long}", "def f():\n    return 0", 120)
    assert max(map(len, lines)) <= 120
    assert " ".join(" ".join(lines[4:]).replace("return 0", "").split()) == long.strip()
    assert lines[5].startswith(" " * 12 + "number_") or lines[5].startswith(" " * 12 + "+ number_")


def test_on_a_terminal_a_version_steers_nothing() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for width in (80, 120):
        console = DataConsole(width=width, file=Terminal(), color_system=None)
        show_function("f", "x = '\x1b]0;mine\x07'", "x = 1", console)
        assert r"\x1b]0;mine\x07" in console.file.getvalue()  # type: ignore[attr-defined]


def test_versions_are_equal_whatever_their_comments_and_docstrings() -> None:
    module = ModuleType("mine")
    lesson = COURSE.find("2")
    names = [name for name in lesson.write if name == "BlockTable.slot"]
    (text,) = (source_of(function_of(lesson.answer(), name)) for name in names)
    assert text.startswith("def slot(self, position: int) -> int:\n    ") and '"""' not in text
    assert are_equal(text, text.replace("\n", "  # here\n", 1)) and not are_equal(text, text + " + 0")
    assert source_of(function_of(lesson.answer(), "BlockTable.num_empty_slots")).startswith(
        "@property\ndef num_"
    )
    module.f = len  # type: ignore[attr-defined]
    assert source_of(function_of(module, "f")) == "# There is no Python source."


@pytest.mark.parametrize(
    ("mine", "key", "words"),
    [
        (12_345, 10_200, "1.21 times the key's: more"),
        (3, 4, "0.75 times the key's: less"),
        (86_224, 86_176, "1.0006 times the key's: more"),
        (0, 0, "1.00 times the key's: the same"),
        (5, 0, "more"),
    ],
)
def test_two_numbers_are_compared_plainly(mine: int, key: int, words: str) -> None:
    assert compared(mine, key) == words


def test_a_pass_names_the_command(course: Course, run_lessons, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    lesson = course.find("3")
    lesson.exercise_path.write_text(right("3", "slices_and_undone_changes").write(tmp_path).read_text())
    printed = run_lessons(lesson.path)[1]
    assert "Yours beside the key: minipaged lessons diff 3" in printed
