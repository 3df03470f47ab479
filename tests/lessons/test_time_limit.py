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


def test_time_that_others_use_does_not_count() -> None:
    """A sleep stands for a machine on which other processes have their turn."""
    began = time.monotonic()
    with time_limit(1):
        while time.monotonic() < began + 1.8:
            time.sleep(0.1)


def test_code_that_waits_is_broken_off_as_well() -> None:
    began = time.monotonic()
    with pytest.raises(TimeLimitError), time_limit(1):
        time.sleep(20)
    assert time.monotonic() < began + 10


def test_nothing_is_left_behind() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with time_limit(20), call_time_limit(20, {"a.py"}):
        assert signal.getsignal(signal.SIGALRM) is not before
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
