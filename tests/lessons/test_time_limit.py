"""A limit within another one leaves that in force, and no limit is left behind."""

from __future__ import annotations

import signal
import time

import pytest

from minipaged.course.time_limit import TimeLimitError, call_time_limit, time_limit


def test_a_limit_around_another_one_goes_on() -> None:
    with pytest.raises(TimeLimitError), time_limit(1):
        with call_time_limit(20, {"a.py"}):
            pass
        until = time.monotonic() + 5
        while time.monotonic() < until:
            pass
    assert time.monotonic() < until


def test_nothing_is_left_behind() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with time_limit(20), call_time_limit(20, {"a.py"}):
        assert signal.getsignal(signal.SIGALRM) is not before
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
