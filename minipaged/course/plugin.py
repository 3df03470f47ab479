"""The hooks of `pytest lessons/`: have the lessons graded in a process of its own, and print the results.

lessons/conftest.py takes its hooks from here. With -v, or --tb, pytest's own report comes as well.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ..terminal import visible
from . import grader, progress
from .grading_process import GradingError, Record, graded
from .manifest import Course, Lesson
from .options import (
    BY_THEMSELVES,
    check_options,
    grader_arguments,
    grades_here,
    refuse_run_unasked,
    submission_of,
)
from .options import pytest_addoption as pytest_addoption
from .outcome import Outcome, forbidden
from .report import points, report

_course: pytest.StashKey[Course] = pytest.StashKey()
_OUTCOMES = "lessons-outcomes"


class Outcomes:
    """The results of each lesson, from the reports of its tests."""

    def __init__(self, config: pytest.Config, course: Course) -> None:
        self._config, self._course = config, course
        self.by_folder: dict[str, Outcome] = {}
        self.expected: dict[str, int] = {}  # number of tests by lesson and test file

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Add one report to the results of its lesson."""
        lesson = self._course.find(report.lesson)
        outcome = Outcome(lesson, submission_of(self._config, lesson))
        self.by_folder.setdefault(lesson.folder, outcome).note(report)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Count the tests, where pytest's own process grades."""
        self.expected = grader.num_tests(session)


def pytest_configure(config: pytest.Config) -> None:
    """Find the course, and make room for its own report."""
    check_options(config)
    course = config.stash[_course] = Course(config.rootpath)
    refuse_run_unasked(*(lesson.path for lesson in course.lessons))
    config.pluginmanager.register(Outcomes(config, course), _OUTCOMES)
    option = config.option
    if option.verbose <= 0 and option.tbstyle == "auto" and not option.collectonly:
        option.verbose, option.tbstyle, option.reportchars = -2, "no", ""
    if grades_here(config):
        config.pluginmanager.register(grader)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> bool | None:
    """Leave collecting to the grading process."""
    return None if grades_here(session.config) else True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config) -> None:
    """Refuse to grade where pytest started in another folder, and loaded these hooks too late."""
    if _course not in config.stash:
        raise pytest.UsageError(BY_THEMSELVES)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Have the lessons graded, and take over the reports as pytest's own."""
    if grades_here(session.config):
        return None
    outcomes = session.config.pluginmanager.getplugin(_OUTCOMES)
    while True:
        last_start: Record = {}
        try:
            for record in graded(grader_arguments(session.config), skip=list(outcomes.by_folder)):
                last_start = record if "start" in record else last_start
                _take_over(session, record)
            return True
        except GradingError as error:
            if not last_start:
                raise pytest.UsageError(f"nothing was graded: {error}") from None
            _report_end(session, last_start, error)
        if not session.config.option.all:
            return True


def _take_over(session: pytest.Session, record: Record) -> None:
    """Do with a record of the grading process what pytest does with its own."""
    hook = session.config.hook
    if "start" in record:
        hook.pytest_runtest_logstart(nodeid=record["start"], location=tuple(record["location"]))
    elif "report" in record:
        hook.pytest_runtest_logreport(report=pytest.TestReport._from_json(record["report"]))
    elif "collect_report" in record:
        hook.pytest_collectreport(report=pytest.CollectReport._from_json(record["collect_report"]))
    elif "num_tests" in record:
        session.config.pluginmanager.getplugin(_OUTCOMES).expected.update(record["num_tests"])
        session.testscollected += sum(record["num_tests"].values())
    else:
        if record["exit_code"] == pytest.ExitCode.USAGE_ERROR:
            raise pytest.UsageError  # the grading process has said why
        if record["exit_code"] == pytest.ExitCode.INTERNAL_ERROR:
            raise GradingError("broke the grader, as it says above")


def _report_end(session: pytest.Session, start: Record, error: GradingError) -> None:
    """Report a test at which the grading process ended."""
    failure = forbidden("An exercise answers, and does nothing else.", str(error), error.line)
    location = tuple(start["location"])
    report = pytest.TestReport(
        start["start"],
        location,
        {},
        "failed",
        str(error),
        "call",
        user_properties=[("why", failure.why)],
        lesson=start["lesson"],
        tests=Path(location[0]).name,
        check=location[2],
        rule=failure.rule,
        failure=vars(failure),
    )
    session.config.hook.pytest_runtest_logreport(report=report)


def pytest_report_teststatus(
    report: pytest.CollectReport | pytest.TestReport, config: pytest.Config
) -> tuple[str, str, str] | None:
    """Print no letters: the lessons have a report of their own."""
    return (report.outcome, "", "") if config.option.verbose < 0 else None


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    """Print the lessons' report, or why there is none."""
    collected = config.pluginmanager.getplugin(_OUTCOMES)
    outcomes = list(collected.by_folder.values())
    for outcome in outcomes:
        outcome.expect(collected.expected)
    if config.option.verbose < 0:  # so pytest itself has not said it
        for error in terminalreporter.stats.get("error", []):
            if isinstance(error, pytest.CollectReport):
                terminalreporter.write_line(f"{error.nodeid} can't be read:\n{error.longreprtext}")
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            terminalreporter.write_line("Nothing was graded: no check is of that name, or in that place.")
    if config.option.collectonly or not any(outcome.num_checks for outcome in outcomes):
        return
    if config.option.json:
        text = json.dumps(points(outcomes), indent=1, ensure_ascii=False)
        Path(config.option.json).write_text(text + "\n", encoding="utf-8")
    solved, new = _update_progress(config, outcomes)
    for style, text in report(config.stash[_course], outcomes, solved, new):
        text = visible(text) if terminalreporter.isatty else text  # it quotes what the exercise made
        terminalreporter.write_line(text, **({style: True} if style else {}))


def _update_progress(config: pytest.Config, outcomes: list[Outcome]) -> tuple[set[str], list[Lesson]]:
    """Remember what was solved. Return the folders of all solved lessons, and the lessons to praise."""
    course = config.stash[_course]
    passed = [outcome.lesson for outcome in outcomes if outcome.is_solved]
    if config.option.solutions or config.option.submission:
        return {lesson.folder for lesson in passed}, []
    solved_before = progress.solved(course)
    progress.note(course, passed, [outcome.lesson for outcome in outcomes if outcome.failures])
    progress.note_parts(course, outcomes)
    new = [lesson for lesson in passed if lesson.folder not in solved_before or len(outcomes) == 1]
    return progress.solved(course), new
