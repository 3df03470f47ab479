"""A reason fits the exception that it explains: a slip such as a misspelt name is no misconception."""

from __future__ import annotations

import pytest

from minipaged.course.checks import (
    WrongAnswerError,
    check_raises,
    last_attempt,
    only_for,
    reason_for_error,
    trying,
)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ZeroDivisionError(), "0 / 0"),
        (NameError(), ""),
        (UnboundLocalError(), ""),
        (ImportError(), ""),
        (SyntaxError(), ""),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_fixed_reason_is_not_told_for_a_slip(error: Exception, expected: str) -> None:
    assert reason_for_error("0 / 0", error) == expected


def test_a_reason_may_depend_on_the_exception() -> None:
    with pytest.raises(KeyError), trying("a call", lambda error: f"no entry {error.args[0]}"):
        raise KeyError("a")
    tried, why = last_attempt()
    assert (tried, reason_for_error(why, KeyError("a"))) == ("a call", "no entry a")


def test_a_reason_may_be_for_some_exceptions_only() -> None:
    why = only_for((ArithmeticError, LookupError), "0 / 0")
    assert [why(error) for error in (ZeroDivisionError(), KeyError(), TypeError())] == ["0 / 0", "0 / 0", ""]


def test_a_slip_in_place_of_an_error_has_no_reason() -> None:
    with pytest.raises(WrongAnswerError) as raised:
        check_raises("a call", ValueError, lambda: misspelt, "a block size is positive")  # type: ignore[name-defined]  # noqa: F821
    assert raised.value.why == ""
