"""The options of `pytest lessons/`, and which of them go to the grading process."""

from __future__ import annotations

from pathlib import Path

import pytest

from .manifest import MANIFEST, Lesson

BY_THEMSELVES = "the lessons are graded by themselves, without other tests: pytest lessons"
# Files that Python or pytest would run by themselves. The grading process runs none of them.
_RUN_UNASKED = ("conftest.py", "sitecustomize.py", "usercustomize.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the lessons."""
    group = parser.getgroup("lessons")
    group.addoption("--solutions", action="store_true", help="grade the answer key: the library itself")
    group.addoption("--all", action="store_true", help="go on after the first lesson that is not solved")
    group.addoption("--submission", metavar="FILE", help="grade --submission=FILE in place of exercise.py")
    group.addoption("--json", metavar="FILE", help="write the points of each check to --json=FILE")
    group.addoption(
        "--same-process",
        action="store_true",
        help="grade in pytest's own process, as --pdb does: an exercise can end it",
    )


def grades_here(config: pytest.Config) -> bool:
    """Whether pytest's own process grades: for a debugger, or to list the checks."""
    option = config.option
    return bool(option.same_process or option.usepdb or option.trace or option.collectonly)


def submission_of(config: pytest.Config, lesson: Lesson) -> Path | None:
    """Return the file that is graded; None for the answer key."""
    return None if config.option.solutions else Path(config.option.submission or lesson.exercise_path)


def grader_arguments(config: pytest.Config) -> list[str]:
    """Return the command line of the grading process."""
    option = config.option
    arguments = [*config.args, "-c", str(config.rootpath / "pytest.ini"), "--rootdir", str(config.rootpath)]
    arguments += ["--tb", option.tbstyle, "--capture", option.capture, "--maxfail", str(option.maxfail or 0)]
    arguments += [f"--verbosity={option.verbose}", "-k", option.keyword, "-m", option.markexpr]
    arguments += [f"--deselect={name}" for name in option.deselect or []]
    if option.submission:
        arguments.append(f"--submission={option.submission}")
    switches = {"--solutions": option.solutions, "--all": option.all, "--showlocals": option.showlocals}
    return arguments + [switch for switch, is_set in switches.items() if is_set]


def check_options(config: pytest.Config) -> None:
    """Refuse options and folders that can't be graded, before anything runs."""
    if not (config.rootpath / MANIFEST).is_file():
        raise pytest.UsageError(BY_THEMSELVES)
    if getattr(config.option, "dist", "no") != "no":  # of pytest-xdist
        raise pytest.UsageError("the lessons are graded one after another, in one process: leave out -n")
    if not config.pluginmanager.hasplugin("terminal"):
        raise pytest.UsageError("the report of the lessons needs pytest's terminal: leave out -p no:terminal")
    json = config.getoption("json")
    if json and (Path(json).is_dir() or not Path(json).absolute().parent.is_dir()):
        raise pytest.UsageError(f"--json={json}: name a file in a folder that exists")
    submission = config.option.submission
    if submission is None:
        return
    if config.option.solutions:
        raise pytest.UsageError("--submission and --solutions: name one of them")
    path = Path(submission)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise pytest.UsageError(f"--submission={submission} {what}: name a Python file")
    if path.suffix != ".py":
        raise pytest.UsageError(f"--submission={submission} is no Python file: its name must end in .py")
    refuse_run_unasked(path.parent)


def refuse_run_unasked(*folders: Path) -> None:
    """Refuse a conftest.py, or another file that would be run by itself, beside an exercise."""
    for folder in folders:
        for name in _RUN_UNASKED:
            if (folder / name).is_file():
                raise pytest.UsageError(f"{folder / name}: only the exercise is graded, remove this file")
