"""The pytest plugin of the lessons: which file is graded, in which order, and what is printed.

lessons/conftest.py takes its hooks from here. With -v, or --tb, pytest's own report comes as well.
"""

from __future__ import annotations

import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ..errors import InvalidRequestError
from ..terminal import visible
from . import progress
from .exercise import load_exercise
from .manifest import MANIFEST, Course, Lesson
from .outcome import ExerciseError, Outcome, explain, passed_through
from .report import report
from .time_limit import time_limit

_course: pytest.StashKey[Course] = pytest.StashKey()
_outcomes: pytest.StashKey[dict[str, Outcome]] = pytest.StashKey()

# What ends a test without an answer.
_ENDS = (pytest.skip.Exception, pytest.xfail.Exception, pytest.exit.Exception, unittest.SkipTest)
_BY_THEMSELVES = "the lessons are graded by themselves, without other tests: pytest lessons"

__all__ = [
    "exercise",
    "pytest_addoption",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_report_teststatus",
    "pytest_runtest_call",
    "pytest_runtest_makereport",
    "pytest_runtest_setup",
    "pytest_terminal_summary",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the lessons."""
    group = parser.getgroup("lessons")
    group.addoption("--solutions", action="store_true", help="grade the answer key: the library itself")
    group.addoption("--all", action="store_true", help="go on after the first lesson that is not solved")
    group.addoption("--submission", metavar="FILE", help="grade --submission=FILE in place of exercise.py")


def pytest_configure(config: pytest.Config) -> None:
    """Find the course, and make room for its own report."""
    _check_options(config)
    config.stash[_course] = Course(config.rootpath)
    config.stash[_outcomes] = {}
    option = config.option
    if option.verbose <= 0 and option.tbstyle == "auto" and not option.collectonly:
        config.option.verbose = -2
        config.option.tbstyle = "no"
        config.option.reportchars = ""


@pytest.fixture(scope="module")
def exercise(request: pytest.FixtureRequest) -> ModuleType:
    """What is graded: the learner's exercise.py, --submission, or with --solutions the answer key."""
    lesson = _lesson(request)
    submission = _submission(request.config, lesson)
    if submission is None:
        return lesson.answer()
    try:
        return load_exercise(submission)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # an Exception in its place is kept by pytest: one import for all tests
        raise ExerciseError("importing the exercise") from error


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Lessons in the order of the manifest, and tests in that of their file."""
    if _course not in config.stash:  # these hooks came late, with a folder that isn't the lessons' own
        raise pytest.UsageError(_BY_THEMSELVES)
    outcomes = config.stash[_outcomes]
    items.sort(key=lambda item: _lesson(item).number)
    for item in items:
        lesson = _lesson(item)
        outcomes.setdefault(lesson.folder, Outcome(lesson, _submission(config, lesson)))
    if config.option.submission and len(outcomes) > 1:
        raise pytest.UsageError(f"--submission is for one lesson, not for {', '.join(outcomes)}")


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Leave out what needs no grading now. The exercise is imported in here.

    Last of the wrappers: a skip must not keep those of pytest from setting up what they tear down.
    """
    _leave_out(item)
    with _guard(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Run a test, within its time."""
    with _guard(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Count what passed, and explain what didn't."""
    result: Any = yield
    outcome = item.config.stash[_outcomes][_lesson(item).folder]
    if result.skipped:
        outcome.num_skipped += 1
    elif result.failed and call.excinfo is not None:
        rule = " ".join(str(getattr(item, "obj", item).__doc__ or item.name).split())
        failure = explain(call.excinfo.value, rule, outcome)
        outcome.failures.append(failure)
        result.user_properties.append(("why", failure.why))
    elif call.when == "call":
        outcome.num_passed += 1
        outcome.ran.add(getattr(item, "originalname", item.name))
    return result


def pytest_report_teststatus(
    report: pytest.CollectReport | pytest.TestReport, config: pytest.Config
) -> tuple[str, str, str] | None:
    """No letters: the lessons' report says it."""
    return (report.outcome, "", "") if config.option.verbose < 0 else None


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    """Print the lessons' report, or why there is none."""
    course, outcomes = config.stash[_course], list(config.stash[_outcomes].values())
    if config.option.verbose < 0:  # so pytest itself has not said it
        for each in terminalreporter.stats.get("error", []):
            if isinstance(each, pytest.CollectReport):
                terminalreporter.write_line(f"{each.nodeid} can't be read:\n{each.longreprtext}")
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            terminalreporter.write_line("Nothing was graded: no check is of that name, or in that place.")
    if config.option.collectonly or not any(each.num_checks for each in outcomes):
        return
    known = progress.solved(course)
    passed = [outcome.lesson for outcome in outcomes if outcome.is_solved]
    failed = [outcome.lesson for outcome in outcomes if outcome.failures]
    if config.option.solutions or config.option.submission:
        solved = {lesson.folder for lesson in passed}
        new: list[Lesson] = []
    else:
        progress.note(course, passed, failed)
        solved = progress.solved(course)
        new = [each for each in passed if each.folder not in known or len(outcomes) == 1]
    for style, text in report(course, outcomes, solved, new):
        text = visible(text) if terminalreporter.isatty else text  # it quotes what the exercise made
        terminalreporter.write_line(text, **({style: True} if style else {}))


def _check_options(config: pytest.Config) -> None:
    """Refuse what can't be graded, before anything runs."""
    if not (config.rootpath / MANIFEST).is_file():
        raise pytest.UsageError(_BY_THEMSELVES)
    if getattr(config.option, "dist", "no") != "no":  # of pytest-xdist
        raise pytest.UsageError("the lessons are graded one after another, in one process: leave out -n")
    submission = config.option.submission
    if submission is None:
        return
    if config.option.solutions:
        raise pytest.UsageError("--submission and --solutions: name one of them")
    if not Path(submission).is_file():
        what = "is a folder" if Path(submission).is_dir() else "does not exist"
        raise pytest.UsageError(f"--submission={submission} {what}: name a Python file")
    if Path(submission).suffix != ".py":
        raise pytest.UsageError(f"--submission={submission} is no Python file: its name must end in .py")


def _leave_out(item: pytest.Item) -> None:
    """Skip what comes after a lesson that is not solved, unless --all, and after a loop that never ends.

    With -k, which may name tests of several lessons, skip those that are not started where another is.
    """
    lesson, option = _lesson(item), item.config.option
    outcomes = item.config.stash[_outcomes]
    if option.keyword and not option.all and not outcomes[lesson.folder].is_started:
        named = {_lesson(each).folder for each in item.session.items}
        if any(outcomes[folder].is_started for folder in named):
            pytest.skip(f"lesson {lesson.number} is not started (--all grades every lesson)")
    for outcome in outcomes.values():
        if outcome.lesson is lesson and outcome.is_stuck:
            pytest.skip("a test of this lesson was broken off: each of the others may take as long")
        if (
            outcome.failures
            and outcome.lesson.number < lesson.number
            and not (option.all or option.solutions)
        ):
            pytest.skip(f"lesson {outcome.lesson.number} comes first (--all grades every lesson)")


@contextmanager
def _guard(item: pytest.Item) -> Iterator[None]:
    """Break off what goes on for too long, and let no exercise end its own test."""
    lesson = _lesson(item)
    try:
        with time_limit(lesson.time_limit):
            yield
    except _ENDS as end:
        if not passed_through(end, _submission(item.config, lesson)):
            raise
        raise ExerciseError(why="what ends a test early gives no answer") from end


def _lesson(item: pytest.Item | pytest.FixtureRequest) -> Lesson:
    try:
        return item.config.stash[_course].find(item.path.parent.name)
    except InvalidRequestError:
        raise pytest.UsageError(f"{item.path} is of no lesson: {_BY_THEMSELVES}") from None


def _submission(config: pytest.Config, lesson: Lesson) -> Path | None:
    if config.option.solutions:
        return None
    return Path(config.option.submission) if config.option.submission else lesson.exercise_path
