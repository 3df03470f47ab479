"""What became of one lesson's tests, and which single failure a learner should see first."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from pathlib import Path

from .checks import WrongAnswerError, describe, last_attempt
from .exercise import is_untouched
from .manifest import Lesson


class TimeLimitError(BaseException):
    """A test took too long. Not an Exception: a learner's `except Exception` must not swallow it."""


@dataclass(frozen=True)
class Failure:
    """Why one test failed. `why` and the three before it may be empty."""

    rule: str  # the sentence that the test stands for
    tried: str
    expected: str
    got: str
    why: str
    line: int | None = None  # of the learner's file
    function: str = ""
    is_unwritten: bool = False


@dataclass
class Outcome:
    """The tests of one lesson that ran. Derived from them: is it solved, started, and what to show."""

    lesson: Lesson
    submission: Path | None  # the file that was graded; None for the answer key
    num_passed: int = 0
    num_skipped: int = 0
    ran: set[str] = field(default_factory=set)  # names of test functions
    failures: list[Failure] = field(default_factory=list)

    @property
    def num_checks(self) -> int:
        """Tests that ran."""
        return self.num_passed + len(self.failures)

    @property
    def is_solved(self) -> bool:
        """All tests of the lesson ran, not only some that were asked for, and passed."""
        return not self.failures and not self.num_skipped and self.ran >= self.lesson.test_functions()

    @property
    def is_started(self) -> bool:
        """Whether anything is written in the exercise."""
        return self.submission is None or not is_untouched(self.lesson, self.submission)

    @property
    def first_failure(self) -> Failure:
        """The failure to show: a wrong answer before what is not written yet."""
        return min(self.failures, key=lambda failure: failure.is_unwritten)


def explain(error: BaseException, rule: str, submission: Path | None) -> Failure:
    """Say why a test failed, from what it raised."""
    tried, why = last_attempt()
    chain = _causes(error)
    line, function = _where(chain, submission)
    if wrong := next((e for e in chain if isinstance(e, WrongAnswerError)), None):
        return Failure(rule, wrong.tried, wrong.expected, wrong.got, wrong.why, line, function)
    if any(isinstance(e, NotImplementedError) for e in chain):
        return Failure(rule, tried, "", "", "", line, function, is_unwritten=True)
    if isinstance(error, TimeLimitError):
        why = why or "a loop that never ends? Look at what has to change on each turn for it to stop"
        return Failure(rule, tried, "an answer", f"none within {error} s", why, line, function)
    if isinstance(error, SyntaxError):
        got, line = f"{type(error).__name__}: {error.msg}", error.lineno
        return Failure(rule, "importing the exercise", "a Python file", got, "", line)
    return Failure(rule, tried, "no exception" if tried else "", describe(chain[-1]), why, line, function)


def _causes(error: BaseException) -> list[BaseException]:
    """The exception and what it was raised from, outermost first: interpreters wrap what a kernel raises."""
    chain = [error]
    while chain[-1].__cause__ is not None and chain[-1].__cause__ not in chain:
        chain.append(chain[-1].__cause__)
    return chain


def _where(chain: list[BaseException], submission: Path | None) -> tuple[int | None, str]:
    """The innermost line of the learner's file that the exception passed."""
    for error in reversed(chain):
        for frame in reversed(traceback.extract_tb(error.__traceback__)):
            if submission is not None and Path(frame.filename).resolve() == submission.resolve():
                return frame.lineno, frame.name
    return None, ""
