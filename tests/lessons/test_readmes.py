"""What the lessons' READMEs tell learners to type does what they say, in a copy of the course."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from minipaged.cli.main import main
from minipaged.course.manifest import Course

COURSE = Course(Path(__file__).parents[2] / "lessons")
COMMANDS = [
    (lesson.folder, line.strip())
    for lesson in COURSE.lessons
    for line in (lesson.path / "README.md").read_text().splitlines()
    if line.startswith(("    pytest ", "    minipaged "))
]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the lessons in it, as the repository has one."""
    folder = tmp_path_factory.mktemp("learner")
    assert main(["lessons", "copy", str(folder / "lessons")]) == 0
    return folder


@pytest.mark.parametrize(("folder", "command"), COMMANDS, ids=lambda value: value if " " in value else None)
def test_a_command_of_a_readme(
    folder: str,
    command: str,
    copy: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(copy)
    program, *words = shlex.split(command)
    if program == "pytest":
        (graded,) = words  # test_lessons.py runs a lesson, unsolved and solved, and test_parts.py a part
        parts = [f"lessons/{folder}/{part.tests}" for part in COURSE.find(folder).parts]
        assert graded in [f"lessons/{folder}", *parts] and Path(graded).exists()
        return
    if "--help" in words:
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0
        return
    code = main(words)
    printed = capsys.readouterr()
    if "--use" in words:  # nothing is written in this copy: that is what it says, and where
        assert code == 2 and "is not written yet" in printed.err and folder in printed.err
    else:
        assert code == 0 and "Hint 1 of 3" in printed.out


def test_each_lesson_says_how_it_is_graded_and_where_a_hint_is() -> None:
    for lesson in COURSE.lessons:
        assert (lesson.folder, f"pytest lessons/{lesson.folder}") in COMMANDS
        assert (lesson.folder, f"minipaged lessons hint {lesson.number}") in COMMANDS
