"""Grade lessons: a plugin of pytest that imports the exercise, guards the tests and explains failures.

It runs in the grading process, whose main program is grader_main.py. With --pdb it runs in pytest's own
process.
"""

from __future__ import annotations

import sys
import unittest
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn
from unittest.mock import patch

import pytest

from ..errors import InvalidRequestError
from .exercise import is_untouched, load_exercise
from .forbidden import ForbiddenError, watched
from .manifest import Course, Lesson
from .options import BY_THEMSELVES, submission_of
from .outcome import ExerciseError, Outcome, explain
from .raised import innermost_line
from .time_limit import time_limit
from .withheld import withheld

_course: pytest.StashKey[Course] = pytest.StashKey()
_outcomes: pytest.StashKey[dict[str, Outcome]] = pytest.StashKey()
_first_forbidden: pytest.StashKey[Callable[[], ForbiddenError | None]] = pytest.StashKey()
_behind: pytest.StashKey[set[Path]] = pytest.StashKey()
# What to do about a ForbiddenError, if not raise it.
ON_FORBIDDEN: pytest.StashKey[Callable[[ForbiddenError], NoReturn]] = pytest.StashKey()

# What ends a test without an answer.
_EARLY_EXITS = (
    pytest.skip.Exception,
    pytest.xfail.Exception,
    pytest.exit.Exception,
    unittest.SkipTest,
    SystemExit,
)
_NO_ANSWER = "what ends a test early gives no answer"


def pytest_configure(config: pytest.Config) -> None:
    """Find the course, and what this run leaves out."""
    config.stash[_course] = Course(config.rootpath)
    config.stash[_outcomes] = {}
    config.stash[_behind] = _behind_unstarted(config)


def _behind_unstarted(config: pytest.Config) -> set[Path]:
    """Return the folders of the lessons behind the first of this run that isn't started, unless --all."""
    option, lessons = config.option, config.stash[_course].lessons
    if option.all or option.solutions or option.submission or option.keyword:
        return set()
    named = [Path(str(argument).partition("::")[0]).resolve() for argument in config.args]
    for number, lesson in enumerate(lessons, start=1):
        in_this_run = any(lesson.path.resolve().is_relative_to(path) for path in named)
        if in_this_run and is_untouched(lesson, lesson.exercise_path):
            return {later.path.resolve() for later in lessons[number:]}
    return set()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the lessons behind the first that isn't started: they may need torch, and come later."""
    return True if collection_path.resolve() in config.stash[_behind] else None


@pytest.fixture(scope="module")
def exercise(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """Import what is graded: the learner's exercise.py, --submission, or with --solutions the answer key."""
    lesson = lesson_of(request)
    submission = submission_of(request.config, lesson)
    if submission is None:
        yield lesson.answer()
        return
    beside = [*sys.path, str(submission.absolute().parent)]  # for modules beside the exercise
    with (
        withheld(lesson),
        patch.object(sys, "path", beside),
        watched(lesson, request.module) as first_forbidden,
    ):
        request.config.stash[_first_forbidden] = first_forbidden
        try:
            module = load_exercise(submission)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # pytest keeps an Exception in its place: one import for all tests
            why = _NO_ANSWER if isinstance(error, _EARLY_EXITS) else ""
            raise ExerciseError("importing the exercise", why) from error
        finally:
            _check_forbidden(request.config)
        yield module
    del request.config.stash[_first_forbidden]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort lessons and their parts as the manifest does, and their tests as their file does."""
    outcomes = config.stash[_outcomes]
    items.sort(key=lambda item: (lesson_of(item).number, lesson_of(item).part_number(item.path.name)))
    for item in items:
        lesson = lesson_of(item)
        outcomes.setdefault(lesson.folder, Outcome(lesson, submission_of(config, lesson)))
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
        try:
            return (yield)
        finally:
            _check_forbidden(item.config)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Note in a report which check of which lesson it is of, and why it failed."""
    result: Any = yield
    outcome = item.config.stash[_outcomes][lesson_of(item).folder]
    result.lesson = outcome.lesson.folder
    result.tests = item.path.name
    result.check = getattr(item, "originalname", item.name)
    result.rule = " ".join(str(getattr(item, "obj", item).__doc__ or item.name).split())
    result.failure = None
    if result.failed and call.excinfo is not None:
        failure = explain(call.excinfo.value, result.rule, outcome)
        result.failure = asdict(failure)
        result.user_properties.append(("why", failure.why))
    outcome.note(result)
    return result


def num_tests(session: pytest.Session) -> dict[str, int]:
    """Return the number of tests of each test file, by the names of the lesson's folder and of the file."""
    return Counter(f"{item.path.parent.name}/{item.path.name}" for item in session.items)


def _leave_out(item: pytest.Item) -> None:
    """Skip a test after a lesson that is not solved, unless --all, and after a loop that never ends.

    -k may name tests of several lessons. If one of these lessons is started, skip those that are not.
    """
    lesson, option = lesson_of(item), item.config.option
    outcomes = item.config.stash[_outcomes]
    own = outcomes[lesson.folder]
    if own.is_stuck:
        pytest.skip("a test of this lesson was broken off: each of the others may take as long")
    if option.all or option.solutions:
        return
    if option.keyword and not own.is_started:
        named = {lesson_of(other).folder for other in item.session.items}
        if any(outcomes[folder].is_started for folder in named):
            pytest.skip(f"lesson {lesson.number} is not started (--all grades every lesson)")
    if part := own.part_before(item.path.name):
        pytest.skip(f"{part.title} comes first (--all grades every part)")
    for outcome in outcomes.values():
        if outcome.failures and outcome.lesson.number < lesson.number:
            pytest.skip(f"lesson {outcome.lesson.number} comes first (--all grades every lesson)")


def _check_forbidden(config: pytest.Config) -> None:
    """Raise ForbiddenError for what the exercise has done, or end this process if it is the grading process.

    An exercise may have replaced what becomes of an error.
    """
    error = config.stash[_first_forbidden]() if _first_forbidden in config.stash else None
    if error is not None and ON_FORBIDDEN in config.stash:
        config.stash[ON_FORBIDDEN](error)
    if error is not None:
        raise error


@contextmanager
def _guard(item: pytest.Item) -> Iterator[None]:
    """Break off a test that runs for too long, and let no exercise end its own test."""
    lesson = lesson_of(item)
    try:
        with time_limit(lesson.time_limit):
            yield
    except _EARLY_EXITS as end:
        if innermost_line([end], submission_of(item.config, lesson)) == (None, ""):
            raise
        raise ExerciseError(why=_NO_ANSWER) from end


def lesson_of(item: pytest.Item | pytest.FixtureRequest) -> Lesson:
    """Return the lesson of a test. Raises pytest.UsageError for a test of no lesson."""
    try:
        return item.config.stash[_course].find(item.path.parent.name)
    except InvalidRequestError:
        raise pytest.UsageError(f"{item.path} is of no lesson: {BY_THEMSELVES}") from None
