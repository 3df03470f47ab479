"""The checks of the lessons' tests. A failed check says what was tried, expected and returned, and why.

A test goes from the smallest input to larger ones and stops at the first wrong answer. The learner sees that
answer. `why` names the misconception behind it; it may be a function of the answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import total_ordering
from typing import Any

Why = str | Callable[[Any], str]

_attempts: list[tuple[str, Why]] = []  # what is being tried, innermost last


class WrongAnswerError(AssertionError):
    """A lesson's check failed; the report shows its parts."""

    def __init__(self, tried: str, expected: str, got: str, why: str) -> None:
        self.tried = tried
        self.expected = expected
        self.got = got
        self.why = why
        super().__init__(f"{tried}: expected {expected}, got {got}. {why}")


@total_ordering
class TensorItem:
    """An id as a tensor yields it: an index that equals its number, but hashes by identity."""

    def __init__(self, block: int) -> None:
        self.block = block

    def __index__(self) -> int:
        return self.block

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int | TensorItem) and self.block == int(other)

    def __hash__(self) -> int:
        return id(self)

    def __lt__(self, other: Any) -> bool:
        return self.block < int(other)


def check(tried: str, got: Any, expected: Any, why: Why) -> None:
    """Raise WrongAnswerError unless `got` equals `expected`, with an int wherever `expected` has one."""
    other = _other_than_int(got, expected)
    if other is not None and got == expected:
        raise WrongAnswerError(tried, show(expected), _cut(repr(got)), _not_an_int(other))
    if not (type(got) is type(expected) or _both_numbers(got, expected)) or got != expected:
        raise WrongAnswerError(tried, *_show_apart(expected, got), reason(why, got))


def check_true(tried: str, holds: Any, expected: str, got: str, why: Why) -> None:
    """Raise WrongAnswerError unless `holds`; `expected` and `got` say it in words."""
    if not holds:
        raise WrongAnswerError(tried, expected, got, reason(why, got))


def check_close(tried: str, got: Any, expected: Any, why: Why, tolerance: float = 1e-9) -> None:
    """Raise WrongAnswerError unless `got`, a number or nested sequences of them, is near `expected`.

    NaN is near nothing. The tolerance is absolute, and relative to numbers above 1.
    """
    if not _is_close(got, expected, tolerance):
        raise WrongAnswerError(tried, *_show_apart(expected, got), reason(why, got))


def check_raises(tried: str, error: type[BaseException], call: Callable[[], Any], why: Why) -> BaseException:
    """Make the call and return the `error` that it raises. Raise WrongAnswerError where it doesn't."""
    expected = f"{error.__name__} raised"
    try:
        got = call()
    except NotImplementedError:  # not written yet, and a RuntimeError to Python
        raise
    except error as raised:
        return raised
    except Exception as other:
        raise WrongAnswerError(tried, expected, describe(other), reason_for_error(why, other)) from other
    raise WrongAnswerError(tried, expected, f"no error, but {show(got)}", reason(why, got))


@contextmanager
def trying(tried: str, why: Why = "") -> Iterator[None]:
    """Tell the report what is being tried, in case the learner's code raises something in here.

    `why` explains the exception; it may be a function of the exception.
    """
    _attempts.append((tried, why))
    yield
    _attempts.pop()  # an exception leaves it there, and the report reads it


def last_attempt() -> tuple[str, Why]:
    """Return what was tried last, with the reason for an exception there, and forget all attempts."""
    attempt = _attempts[-1] if _attempts else ("", "")
    _attempts.clear()
    return attempt


def describe(error: BaseException) -> str:
    """Return an exception in one line."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # of an exercise's own exception
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def show(value: Any) -> str:
    """Return a value as the report prints it: floats are rounded, long texts are cut."""
    return _cut(_rounded(value))


def _show_apart(expected: Any, got: Any) -> tuple[str, str]:
    """Return both as `show` does, or with all their digits where they would look the same."""
    shown = show(expected), show(got)
    return shown if shown[0] != shown[1] else (_cut(repr(expected)), _cut(repr(got)))


def _cut(text: str) -> str:
    return text if len(text) <= 300 else f"{text[:280]} ... ({len(text)} characters)"


def _rounded(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        inside = ", ".join(map(_rounded, value))
        comma = "," if isinstance(value, tuple) and len(value) == 1 else ""
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{comma})"
    return repr(value)


def _both_numbers(got: Any, expected: Any) -> bool:
    return all(isinstance(x, int | float) and not isinstance(x, bool) for x in (got, expected))


def _other_than_int(got: Any, expected: Any) -> Any:
    """Return the first float or bool in `got` where `expected` has an int, also in lists and tuples."""
    if type(expected) is int:
        return got if isinstance(got, float | bool) else None
    if not (isinstance(got, list | tuple) and isinstance(expected, list | tuple)):
        return None
    others = map(_other_than_int, got, expected)
    return next((other for other in others if other is not None), None)


def _not_an_int(other: float | bool) -> str:
    kind = type(other).__name__
    hint = "True and False are no counts" if isinstance(other, bool) else "/ makes a float, // keeps an int"
    return f"the value is right and its type is not: {other!r} is a {kind}, expected an int. {hint}"


def _is_close(got: Any, expected: Any, tolerance: float) -> bool:
    if isinstance(expected, int | float):
        if not isinstance(got, int | float) or math.isnan(got):
            return False
        return math.isclose(got, expected, rel_tol=tolerance, abs_tol=tolerance)
    try:
        return len(got) == len(expected) and all(
            _is_close(g, e, tolerance) for g, e in zip(got, expected, strict=True)
        )
    except TypeError:
        return False


def reason_for_error(why: Why, error: BaseException) -> str:
    """Return `why` for an exception, or "" for a slip such as a misspelt name: no misconception led to it."""
    return "" if isinstance(error, NameError | ImportError | SyntaxError) else reason(why, error)


def only_for(errors: type[Exception] | tuple[type[Exception], ...], why: str) -> Callable[[Any], str]:
    """Return a reason for `trying` that is told only if what was raised is one of `errors`."""
    return lambda error: why if isinstance(error, errors) else ""


def reason(why: Why, got: Any) -> str:
    """Return `why` as text; where it is a function, its words for `got`."""
    return why if isinstance(why, str) else why(got)
