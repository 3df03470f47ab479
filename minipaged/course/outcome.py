"""The results of one lesson's tests, and the one failure that a learner should see first."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from .checks import WrongAnswerError, describe, last_attempt, reason_for_error
from .exercise import is_untouched
from .forbidden import ForbiddenError
from .manifest import Lesson, Part
from .raised import chain, innermost_line, is_file, raised_by_hand
from .time_limit import TimeLimitError
from .withheld import WithheldError


class ExerciseError(Exception):
    """Wraps what the exercise raised at its import or in an answer, which is the `__cause__`."""

    def __init__(self, tried: str = "", why: str = "") -> None:
        self.tried = tried
        self.why = why
        super().__init__(tried or why)


@dataclass(frozen=True)
class Failure:
    """Why one test failed. `tried`, `expected`, `got` and `why` may be empty."""

    rule: str  # the sentence that the test stands for
    tried: str
    expected: str
    got: str
    why: str
    line: int | None = None  # of the learner's file
    function: str = ""
    is_unwritten: bool = False
    is_stuck: bool = False  # broken off by the time limit


@dataclass
class Tally:
    """The tests of one file that ran."""

    num_passed: int = 0
    num_skipped: int = 0
    num_expected: int = 0
    ran: set[str] = field(default_factory=set)  # names of test functions
    failures: list[Failure] = field(default_factory=list)
    checks: list[dict[str, Any]] = field(default_factory=list)  # that passed or failed, with their points

    def note(self, report: Any) -> None:
        """Add pytest's report of one test; grader.py has added `check`, `rule` and `failure` to it."""
        if report.skipped:
            self.num_skipped += 1
            self._add_check(report, 0, why=report.longrepr[2].removeprefix("Skipped: "))
        elif report.failure is not None:
            failure = Failure(**report.failure)
            self.failures.append(failure)
            unwritten = f"{failure.function} is not written yet" if failure.is_unwritten else ""
            self._add_check(report, 0, got=failure.got, why=unwritten or failure.why)
        elif report.when == "call":
            self.num_passed += 1
            self.ran.add(report.check)
            self._add_check(report, 1)

    def _add_check(self, report: Any, points: int, **told: str) -> None:
        self.checks.append({"check": report.nodeid, "rule": report.rule, "points": points, **told})

    @property
    def num_all(self) -> int:
        """Tests that were to run; the process that grades may have ended before."""
        return max(self.num_expected, self.num_checks + self.num_skipped)

    @property
    def num_checks(self) -> int:
        """Tests that ran."""
        return self.num_passed + len(self.failures)

    def passes(self, functions: set[str]) -> bool:
        """All of these tests ran, not only some that were asked for, and passed."""
        all_ran = bool(self.ran) and self.ran >= functions and not self.num_skipped
        return all_ran and not self.failures


@dataclass
class Outcome:
    """The tests of one lesson that ran, and what follows: is it solved, is it started, what to show."""

    lesson: Lesson
    submission: Path | None  # the file that was graded; None for the answer key
    tallies: dict[str, Tally] = field(default_factory=dict)  # by test file, in the order of the parts
    new_parts: list[Part] = field(default_factory=list)  # those that passed for the first time

    def of(self, tests: str) -> Tally:
        """Return the tally of a test file."""
        return self.tallies.setdefault(tests, Tally())

    def note(self, report: Any) -> None:
        """Add pytest's report of one test to the tally of its file."""
        self.of(report.tests).note(report)

    def expect(self, num_tests: dict[str, int]) -> None:
        """Take over how many tests there are, by the names of folder and file."""
        for name, number in num_tests.items():
            folder, _, tests = name.partition("/")
            if folder == self.lesson.folder:
                self.of(tests).num_expected = number

    @property
    def total(self) -> Tally:
        """The tally of all tests of the lesson, the failures of the first part first."""
        total = Tally()
        for tally in self.tallies.values():
            total.num_passed += tally.num_passed
            total.num_skipped += tally.num_skipped
            total.num_expected += tally.num_expected
            total.ran |= tally.ran
            total.failures += tally.failures
            total.checks += tally.checks
        return total

    @property
    def failures(self) -> list[Failure]:
        """Why tests failed, those of the first part first."""
        return self.total.failures

    @property
    def num_checks(self) -> int:
        """Tests that ran."""
        return self.total.num_checks

    @property
    def is_solved(self) -> bool:
        """Whether all tests of the lesson ran and passed."""
        return self.total.passes(self.lesson.test_functions())

    def passes(self, part: Part) -> bool:
        """Whether all tests of a part ran and passed."""
        return self.of(part.tests).passes(self.lesson.test_functions(part.tests))

    @property
    def failed_part(self) -> Part | None:
        """The first part with a failure. None if none failed, or if the lesson has no parts."""
        return next((part for part in self.lesson.parts if self.of(part.tests).failures), None)

    def part_before(self, tests: str) -> Part | None:
        """Return the failed part, if a test file grades a later one."""
        failed = self.failed_part
        if failed is None or self.lesson.part_number(failed.tests) >= self.lesson.part_number(tests):
            return None
        return failed

    @property
    def is_started(self) -> bool:
        """Whether anything is written in the exercise."""
        return self.submission is None or not is_untouched(self.lesson, self.submission)

    @property
    def is_stuck(self) -> bool:
        """Whether a test was broken off by the time limit."""
        return any(failure.is_stuck for failure in self.failures)

    @property
    def first_failure(self) -> Failure:
        """The failure of the first part to show: a wrong answer before what is not written yet."""
        failures = next(tally.failures for tally in self.tallies.values() if tally.failures)
        return min(failures, key=lambda failure: failure.is_unwritten)


def explain(error: BaseException, rule: str, outcome: Outcome) -> Failure:
    """Return why a test failed, judged by what it raised."""
    tried, why = last_attempt()
    if isinstance(error, ExerciseError):
        tried, why = error.tried or tried, error.why or why
    path, causes = outcome.submission, chain(error, "__cause__")
    line, function = innermost_line(causes, path)
    last = causes[-1]
    why = reason_for_error(why, last)
    if wrong := next((cause for cause in causes if isinstance(cause, WrongAnswerError)), None):
        return Failure(rule, wrong.tried, wrong.expected, wrong.got, wrong.why, line, function)
    if any(isinstance(cause, NotImplementedError) for cause in causes):
        return Failure(rule, tried, "", "", "", line, function, is_unwritten=True)
    for cause in causes:
        if isinstance(cause, ForbiddenError):
            return forbidden(rule, f"the exercise {cause}", cause.line)
        if isinstance(cause, WithheldError):
            why = (
                "that is the answer key, which raises while its lesson is graded: write an answer of your own"
            )
            return Failure(rule, tried, "an answer", f"the library's own {cause}", why, line, function)
    if isinstance(last, TimeLimitError):
        why = "a loop that never ends? Look at what has to change on each turn for it to stop"
        return Failure(rule, tried, "an answer", f"none within {last} s", why, line, function, is_stuck=True)
    anew = f"`minipaged lessons reset {outcome.lesson.number}` makes it anew"
    if path is not None and not path.is_file():
        return Failure(rule, tried, path.name, "no such file", f"renamed or deleted? {anew}")
    if isinstance(last, SyntaxError) and is_file(last.filename, path):
        got = f"{type(last).__name__}: {last.msg}"
        return Failure(rule, tried, "a Python file", got, "", last.lineno)
    if path is not None and (name := _missing_name(last, outcome.lesson, path)):
        why = f"renamed or deleted? {anew}, and keeps what is written"
        return Failure(rule, tried, name, f"{path.name} defines no {name}", why)
    if tried and not why and (refusal := raised_by_hand(last, path)):
        why = f"line {refusal} of your file refuses a call that is right: look at its condition"
    return Failure(rule, tried, "no exception" if tried else "", describe(last), why, line, function)


def forbidden(rule: str, got: str, line: int | None) -> Failure:
    """Return the failure of an exercise that does something else than answer."""
    return Failure(rule, "", "an answer", got, "an answer needs nothing of that", line)


def _missing_name(error: BaseException, lesson: Lesson, path: Path) -> str:
    """Return the name that a test wanted and the exercise doesn't define; "" for any other error."""
    if not isinstance(error, AttributeError):
        return ""
    if isinstance(error.obj, ModuleType):
        return error.name or "" if is_file(getattr(error.obj, "__file__", None), path) else ""
    owner = error.obj if isinstance(error.obj, type) else type(error.obj)
    module = sys.modules.get(owner.__module__)
    name = f"{owner.__name__}.{error.name}"
    return name if name in lesson.write and is_file(getattr(module, "__file__", None), path) else ""
