"""The process that grades, seen from outside: pytest starts it, reads its records and ends it.

An exercise runs with all rights of the process that grades it, and may end that process, fill its memory or
write anywhere. So pytest itself runs in another process and takes over only records that begin with a token.
The token goes to the grader before the exercise is imported. Its main program is grader_main.py.
"""

from __future__ import annotations

import json
import os
import secrets
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MAX_OUTPUT = 4_000_000  # bytes that an exercise may print in one test
MAX_MEMORY = 6 << 30  # bytes that the grading process may hold
_PATIENCE = 4  # times a test's limit of processor time; only code that no signal can stop gets there
_AT_START = 300  # seconds to import torch and collect the checks

_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from minipaged.course.grader_main import main
main()
"""

_KEYS = {"num_tests", "start", "report", "collect_report", "forbidden", "exit_code"}  # a record has one

Record = dict[str, Any]


class GradingError(Exception):
    """The exercise ended the grading process, or did what ends it; the message says what.

    line: of the exercise, if it is known.
    """

    def __init__(self, told: str, line: int | None = None) -> None:
        self.line = line
        super().__init__(f"the exercise {told}")


def graded(arguments: list[str], skip: list[str]) -> Iterator[Record]:
    """Grade in a new process and yield its records; the last one has the key `exit_code`.

    skip: folders of lessons that are not to be graded.
    Raises GradingError if the process ends before its last record, if the exercise does what is forbidden,
    or if it writes among the grader's records.
    """
    token = secrets.token_hex(16)
    read_end, write_end = os.pipe()
    # -E and -P: no sitecustomize of the PYTHONPATH or of the working folder. Modules come from where ours do.
    command = [sys.executable, "-E", "-P", "-c", _PROGRAM, json.dumps(sys.path)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    child = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=[write_end],
        env={**kept, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    os.close(write_end)
    try:
        order = {"token": token, "arguments": arguments, "skip": skip, "file": write_end}
        assert child.stdin is not None
        child.stdin.write(json.dumps(order).encode() + b"\n")
        child.stdin.flush()  # and stays open: the grader ends when its end is closed
        yield from _records(child, read_end, token)
    finally:
        child.kill()
        child.communicate()
        os.close(read_end)


def _records(child: subprocess.Popen[bytes], read_end: int, token: str) -> Iterator[Record]:
    """Yield the records, and print what else the process prints."""
    printed, unread, deadline = 0, b"", time.monotonic() + _AT_START
    assert child.stdout is not None
    with selectors.DefaultSelector() as streams:
        streams.register(read_end, selectors.EVENT_READ)
        streams.register(child.stdout, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in streams.select(0.5)}
            if child.stdout.fileno() in ready:
                printed += _print_on(child, streams)
            if read_end in ready:
                data = os.read(read_end, 1 << 16)
                if not data:
                    raise GradingError(_how_it_ended(child))
                *lines, unread = (unread + data).split(b"\n")
                for line in lines:
                    record = _record(line, token)
                    if "time_limit" in record:
                        deadline = time.monotonic() + _PATIENCE * record["time_limit"]
                    yield record
                    if "exit_code" in record:
                        return
            _check_limits(child, printed, deadline)


def _print_on(child: subprocess.Popen[bytes], streams: selectors.BaseSelector) -> int:
    """Print what the process has printed, and return the number of bytes."""
    assert child.stdout is not None
    data = os.read(child.stdout.fileno(), 1 << 16)
    if not data:
        streams.unregister(child.stdout)
    sys.stdout.write(data.decode(errors="replace"))
    return len(data)


def _record(line: bytes, token: str) -> Record:
    """Return the record in a line. Raises GradingError for a forbidden act and for a line not ours."""
    if not line.startswith(token.encode()):
        raise GradingError("wrote among the grader's records")
    record: Record = json.loads(line[len(token) :])
    if not record.keys() & _KEYS:
        raise GradingError("changed the grader's records")
    if "forbidden" in record:
        raise GradingError(record["forbidden"], record["line"])
    return record


def _check_limits(child: subprocess.Popen[bytes], printed: int, deadline: float) -> None:
    """Raise GradingError if the process prints, holds or waits too much."""
    if max(printed, _captured(child.pid)) > MAX_OUTPUT:
        raise GradingError(f"printed more than {MAX_OUTPUT:,} bytes: a print in a loop that never ends?")
    if _memory(child.pid) > MAX_MEMORY:
        limit = f"{MAX_MEMORY >> 30} GiB of memory"
        raise GradingError(f"used more than {limit}: a recursion or a list that never ends?")
    if time.monotonic() > deadline:
        raise GradingError("gave no answer in time, and could not be interrupted")


def _memory(pid: int) -> int:
    """Return the bytes that a process holds; 0 on a system without /proc."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def _captured(pid: int) -> int:
    """Return the size of the file that pytest captures the output of a test in; 0 without /proc."""
    try:
        return Path(f"/proc/{pid}/fd/1").stat().st_size
    except OSError:
        return 0


def _how_it_ended(child: subprocess.Popen[bytes]) -> str:
    """Say how a process ended that made no report."""
    try:
        code = child.wait(timeout=5)
    except subprocess.TimeoutExpired:
        return "closed the grader's report"
    if code >= 0:
        return f"ended the process that grades with exit code {code}: no report is a failure"
    name = signal.Signals(-code).name
    crashed = ": a crash in native code?" if name in ("SIGSEGV", "SIGBUS", "SIGABRT") else ""
    return f"ended the process that grades with {name}{crashed}"
