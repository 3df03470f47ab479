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
from .outcome import ExerciseError, Outcome, explain
from .raised import innermost_line
from .report import report
from .time_limit import time_limit

_course: pytest.StashKey[Course] = pytest.StashKey()
_outcomes: pytest.StashKey[dict[str, Outcome]] = pytest.StashKey()

# What ends a test without an answer.
_ENDS = (pytest.skip.Exception, pytest.xfail.Exception, pytest.exit.Exception, unittest.SkipTest)
_BY_THEMSELVES = "the lessons are graded by themselves, without other tests: pytest lessons"


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
        option.verbose, option.tbstyle, option.reportchars = -2, "no", ""


@pytest.fixture(scope="module")
def exercise(request: pytest.FixtureRequest) -> ModuleType:
    """Import what is graded: the learner's exercise.py, --submission, or with --solutions the answer key."""
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
    """Sort lessons and their parts as the manifest does, and their tests as their file does."""
    if _course not in config.stash:  # pytest started in another folder and loaded these hooks too late
        raise pytest.UsageError(_BY_THEMSELVES)
    outcomes = config.stash[_outcomes]
    items.sort(key=lambda item: (_lesson(item).number, _lesson(item).part_number(item.path.name)))
    for item in items:
        lesson = _lesson(item)
        outcomes.setdefault(lesson.folder, Outcome(lesson, _submission(config, lesson)))
    if config.option.submission and len(outcomes) > 1:
        raise pytest.UsageError(f"--submission is for one lesson, not for {', '.join(outcomes)}")


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Skip a test that needs no grading now, and import the exercise.

    Last of the wrappers: a skip must not keep pytest's own wrappers from setting up what they tear down.
    """
    _leave_out(item)
    with _guard(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Run a test within its time limit."""
    with _guard(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Count a test that passed, and explain one that failed."""
    result: Any = yield
    outcome = item.config.stash[_outcomes][_lesson(item).folder]
    tally = outcome.of(item.path.name)
    if result.skipped:
        tally.num_skipped += 1
    elif result.failed and call.excinfo is not None:
        rule = " ".join(str(getattr(item, "obj", item).__doc__ or item.name).split())
        failure = explain(call.excinfo.value, rule, outcome)
        tally.failures.append(failure)
        result.user_properties.append(("why", failure.why))
    elif call.when == "call":
        tally.num_passed += 1
        tally.ran.add(getattr(item, "originalname", item.name))
    return result


def pytest_report_teststatus(
    report: pytest.CollectReport | pytest.TestReport, config: pytest.Config
) -> tuple[str, str, str] | None:
    """Print no letters: the lessons have a report of their own."""
    return (report.outcome, "", "") if config.option.verbose < 0 else None


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    """Print the lessons' report, or why there is none."""
    course, outcomes = config.stash[_course], list(config.stash[_outcomes].values())
    if config.option.verbose < 0:  # so pytest itself has not said it
        for error in terminalreporter.stats.get("error", []):
            if isinstance(error, pytest.CollectReport):
                terminalreporter.write_line(f"{error.nodeid} can't be read:\n{error.longreprtext}")
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            terminalreporter.write_line("Nothing was graded: no check is of that name, or in that place.")
    if config.option.collectonly or not any(outcome.num_checks for outcome in outcomes):
        return
    solved_before = progress.solved(course)
    passed = [outcome.lesson for outcome in outcomes if outcome.is_solved]
    failed = [outcome.lesson for outcome in outcomes if outcome.failures]
    if config.option.solutions or config.option.submission:
        solved = {lesson.folder for lesson in passed}
        new: list[Lesson] = []
    else:
        progress.note(course, passed, failed)
        progress.note_parts(course, outcomes)
        solved = progress.solved(course)
        new = [lesson for lesson in passed if lesson.folder not in solved_before or len(outcomes) == 1]
    for style, text in report(course, outcomes, solved, new):
        text = visible(text) if terminalreporter.isatty else text  # it quotes what the exercise made
        terminalreporter.write_line(text, **({style: True} if style else {}))


def _check_options(config: pytest.Config) -> None:
    """Refuse options and folders that can't be graded, before anything runs."""
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
    """Skip a test after a lesson that is not solved, unless --all, and after a loop that never ends.

    -k may name tests of several lessons. If one of these lessons is started, skip those that are not.
    """
    lesson, option = _lesson(item), item.config.option
    outcomes = item.config.stash[_outcomes]
    own = outcomes[lesson.folder]
    if own.is_stuck:
        pytest.skip("a test of this lesson was broken off: each of the others may take as long")
    if option.all or option.solutions:
        return
    if option.keyword and not own.is_started:
        named = {_lesson(other).folder for other in item.session.items}
        if any(outcomes[folder].is_started for folder in named):
            pytest.skip(f"lesson {lesson.number} is not started (--all grades every lesson)")
    if part := own.part_before(item.path.name):
        pytest.skip(f"{part.title} comes first (--all grades every part)")
    for outcome in outcomes.values():
        if outcome.failures and outcome.lesson.number < lesson.number:
            pytest.skip(f"lesson {outcome.lesson.number} comes first (--all grades every lesson)")


@contextmanager
def _guard(item: pytest.Item) -> Iterator[None]:
    """Break off a test that runs for too long, and let no exercise end its own test."""
    lesson = _lesson(item)
    try:
        with time_limit(lesson.time_limit):
            yield
    except _ENDS as end:
        if innermost_line([end], _submission(item.config, lesson)) == (None, ""):
            raise
        raise ExerciseError(why="what ends a test early gives no answer") from end


def _lesson(item: pytest.Item | pytest.FixtureRequest) -> Lesson:
    try:
        return item.config.stash[_course].find(item.path.parent.name)
    except InvalidRequestError:
        raise pytest.UsageError(f"{item.path} is of no lesson: {_BY_THEMSELVES}") from None


def _submission(config: pytest.Config, lesson: Lesson) -> Path | None:
    return None if config.option.solutions else Path(config.option.submission or lesson.exercise_path)
