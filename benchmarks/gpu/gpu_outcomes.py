"""A pytest plugin that notes each outcome in a file as soon as it is known: a run cut short still counts.

MINIPAGED_OUTCOMES names the file, one JSON list a line: test, outcome, and why where it did not pass.
"""

from __future__ import annotations

import json
import os
from typing import Any

FILE_SWITCH = "MINIPAGED_OUTCOMES"


def note(test: str, outcome: str, why: object) -> None:
    """Append one outcome. Workers of pytest-xdist hand theirs to the process that started them."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    reason = why[-1] if isinstance(why, tuple) else str(why or "")
    with open(os.environ[FILE_SWITCH], "a") as file:
        file.write(json.dumps([test, outcome, reason[-2000:]]) + "\n")


def pytest_runtest_logreport(report: Any) -> None:
    """A test's call, and whatever keeps it from one or fails after it."""
    if report.when == "call" or not report.passed:
        note(report.nodeid, report.outcome, report.longrepr)


def pytest_collectreport(report: Any) -> None:
    """A file that can't be imported is a failure, and one that skips itself is skipped."""
    if not report.passed:
        note(report.nodeid, report.outcome, report.longrepr)
