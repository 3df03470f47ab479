"""The main program of the grading process: run pytest with the grader, and send its reports as records.

The process that started it is in grading_process.py. It ends this one, and knows a record by its token.
"""

from __future__ import annotations

import io
import json
import os
import sys
import threading
from typing import Any, NoReturn

import pytest

from . import grader
from .forbidden import ForbiddenError

MAX_CAPTURED = 20_000  # characters of what an exercise printed that go into a report
_WITHOUT = ("-p", "no:cacheprovider", "-p", "no:faulthandler")  # plugins of pytest


def main() -> NoReturn:
    """Grade as the parent process asks on standard input, report to it, and end at once."""
    order = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, args=[os.dup(0)], daemon=True).start()
    sender = Sender(order["file"], order["token"], order["skip"])
    code = pytest.main(
        [*order["arguments"], "--noconftest", "-p", "minipaged.course.options", *_WITHOUT],
        plugins=[grader, sender],
    )
    sys.stdout.flush()
    sender.send(exit_code=int(code))
    os._exit(int(code))  # nothing of the exercise runs after the last record


def _end_with_parent(orders: int) -> None:
    """Wait until the parent process is gone, and end."""
    os.read(orders, 1)
    os._exit(pytest.ExitCode.INTERRUPTED)


class Sender:
    """Sends pytest's reports to the parent process, a record per line."""

    def __init__(self, file: int, token: str, skip: list[str]) -> None:
        self._file, self._token, self._skip = file, token.encode(), skip

    def send(self, **record: Any) -> None:
        """Write one record."""
        line = self._token + json.dumps(record).encode() + b"\n"
        while line:
            line = line[os.write(self._file, line) :]

    def end(self, error: ForbiddenError) -> NoReturn:
        """Report what the exercise did and end at once: nothing in this process can be trusted now."""
        self.send(forbidden=str(error), line=error.line)
        os._exit(pytest.ExitCode.TESTS_FAILED)

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Print nothing: the parent process does, from the records."""
        config.stash[grader.ON_FORBIDDEN] = self.end
        config.get_terminal_writer()._file = io.StringIO()

    def pytest_internalerror(self, excrepr: Any) -> None:
        """Print the last line of an error of the grader itself all the same."""
        sys.stderr.write(f"{str(excrepr).strip().splitlines()[-1]}\n")

    def pytest_keyboard_interrupt(self) -> None:
        """Report the interrupt, unless it was typed: then the parent process has got it, too, and ends."""
        self.send(forbidden="raised KeyboardInterrupt", line=None)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out what an earlier grading process has graded."""
        items[:] = [item for item in items if item.path.parent.name not in self._skip]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Send how many tests there are."""
        self.send(num_tests=grader.num_tests(session))

    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        """Tell which test begins, in case it is the last one."""
        lesson = grader.lesson_of(item)
        start = {"start": item.nodeid, "location": item.location, "lesson": lesson.folder}
        self.send(**start, time_limit=lesson.time_limit)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send one report, with the last part of what the exercise printed."""
        report.sections = [(name, text[-MAX_CAPTURED:]) for name, text in report.sections]
        self.send(report=report._to_json())

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Send why a file of tests can't be read."""
        if report.failed:
            self.send(collect_report={**report._to_json(), "result": None})
