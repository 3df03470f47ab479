"""The pytest plugin of the lessons: which file is graded, in which order, and what is printed.

lessons/conftest.py takes its hooks from here. With -v, or --tb, pytest's own report comes as well.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest

from . import progress
from .exercise import load_exercise
from .manifest import Course, Lesson
from .outcome import Outcome, TimeLimitError, explain
from .report import report

_course: pytest.StashKey[Course] = pytest.StashKey()
_outcomes: pytest.StashKey[dict[str, Outcome]] = pytest.StashKey()

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
    config.stash[_course] = Course(config.rootpath)
    config.stash[_outcomes] = {}
    if config.option.verbose == 0 and config.option.tbstyle == "auto":
        config.option.verbose = -2
        config.option.tbstyle = "no"
        config.option.reportchars = ""


@pytest.fixture(scope="module")
def exercise(request: pytest.FixtureRequest) -> ModuleType:
    """What is graded: the learner's exercise.py, --submission, or with --solutions the answer key."""
    lesson = _lesson(request)
    submission = _submission(request.config, lesson)
    return lesson.answer() if submission is None else load_exercise(submission)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Lessons in the order of the manifest, and tests in that of their file."""
    items.sort(key=lambda item: _lesson(item).number)
    for item in items:
        lesson = _lesson(item)
        outcome = Outcome(lesson, _submission(config, lesson))
        config.stash[_outcomes].setdefault(lesson.folder, outcome)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out what comes after a lesson that is not solved, unless --all."""
    if item.config.option.all or item.config.option.solutions:
        return
    for outcome in item.config.stash[_outcomes].values():
        if outcome.failures and outcome.lesson.number < _lesson(item).number:
            pytest.skip(f"lesson {outcome.lesson.number} comes first (--all grades every lesson)")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Break off a test that goes on for too long."""
    limit = _lesson(item).time_limit
    if not hasattr(signal, "SIGALRM") or threading.current_thread() is not threading.main_thread():
        return (yield)

    def stop(signum: int, frame: FrameType | None) -> None:
        raise TimeLimitError(limit)

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(limit)
    try:
        return (yield)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Count what passed, and explain what didn't."""
    result: Any = yield
    outcome = item.config.stash[_outcomes][_lesson(item).folder]
    if result.skipped:
        outcome.num_skipped += 1
    elif result.failed and call.excinfo is not None:
        rule = " ".join(str(getattr(item, "obj", item).__doc__ or item.name).split())
        failure = explain(call.excinfo.value, rule, outcome.submission)
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
    return (report.outcome, "", "") if config.option.verbose < 0 and report.when == "call" else None


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the lessons' report."""
    course, outcomes = config.stash[_course], list(config.stash[_outcomes].values())
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
        terminalreporter.write_line(text, **({style: True} if style else {}))


def _lesson(item: pytest.Item | pytest.FixtureRequest) -> Lesson:
    return item.config.stash[_course].find(item.path.parent.name)


def _submission(config: pytest.Config, lesson: Lesson) -> Path | None:
    if config.option.solutions:
        return None
    return Path(config.option.submission) if config.option.submission else lesson.exercise_path
