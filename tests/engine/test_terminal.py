"""Printed text is data: unchanged in a pipe, unable to steer a terminal, within what an encoding holds."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.padding import Padding
from rich.table import Table

from minipaged import LLM, terminal
from minipaged.cli import doctor
from minipaged.cli.main import main
from minipaged.terminal import results
from minipaged.terminal.console import DataConsole
from minipaged.view.terminal_view import draw_blocks

PLAIN = r"\[x^2\] C:\ \frac{a}{b} [bold]x[/] [/] :smile: [link=y] \x1b"
STEERING = (
    "title \x1b]0;mine\x07 clip \x1b]52;c;aGk=\x1b\\ clear \x1b[2J\x1b[H over\rwritten "
    "\x9b31m \x8d back\b\x7f \u202eabc\u2066"
)
VISIBLE = (
    r"title \x1b]0;mine\x07 clip \x1b]52;c;aGk=\x1b\ clear \x1b[2J\x1b[H over\rwritten "
    r"\x9b31m \x8d back\x08\x7f \u202eabc\u2066"
)
HOSTILE = f"{PLAIN}\n{STEERING}\tend"
STYLE = re.compile(r"\x1b\[[0-9;]*m")  # what rich may write


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def tiny_llm(tiny_chat_model: Path) -> LLM:
    return LLM(str(tiny_chat_model))


@pytest.fixture
def says(tiny_llm: LLM, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A function that makes the model of the command line answer with a text, five characters a token."""
    step = tiny_llm.engine.step

    def speak(text: str) -> None:
        def answered(output: Any) -> Any:
            each = [
                replace(one, text=text if output.finished else text[: 5 * len(one.token_ids)])
                for one in output.outputs
            ]
            return replace(output, outputs=each)

        monkeypatch.setattr(tiny_llm.engine, "step", lambda: [answered(output) for output in step()])
        monkeypatch.setattr("minipaged.cli.options.make_llm", lambda *_: tiny_llm)

    return speak


@contextmanager
def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Standard output and error are a terminal in here; what came through is in the list afterwards."""
    pty = pytest.importorskip("pty")
    parent, child = pty.openpty()
    came: list[bytes] = []
    printed: list[str] = []

    def read() -> None:
        with suppress(OSError):  # the other end is closed
            while data := os.read(parent, 4096):
                came.append(data)

    reader = threading.Thread(target=read)
    reader.start()
    with monkeypatch.context() as patch, open(child, "w", encoding="utf-8") as stream:
        for name in ("NO_COLOR", "FORCE_COLOR"):
            patch.delenv(name, raising=False)
        patch.setenv("TERM", "xterm-256color")
        patch.setattr(sys, "stdout", stream)
        patch.setattr(sys, "stderr", stream)
        yield printed
    reader.join(10)
    os.close(parent)
    printed.append(b"".join(came).decode().replace("\r\n", "\n"))


def assert_harmless(printed: str) -> None:
    """Nothing but styles, tabs and lines."""
    rest = STYLE.sub("", printed)
    assert terminal.visible(rest) == rest


def test_what_steers_a_terminal_is_written_out() -> None:
    assert terminal.visible(STEERING) == VISIBLE
    kept = "a\tb\nc é 안녕 😀 👩‍👩‍👧 \u200f \\x1b"  # joiners and marks of scripts are text
    assert terminal.visible(kept) == kept
    for code in [*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, 0x202A, 0x202E, 0x2069, 0xD800, 0xDFFF]:
        shown = terminal.visible(chr(code))
        assert shown == chr(code) if chr(code) in "\t\n" else shown.startswith("\\") and shown.isascii()


def test_generate_on_a_terminal(says: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    says(HOSTILE)
    with on_a_terminal(monkeypatch) as came:
        assert main(["generate", f"{PLAIN} {STEERING}", "--show-blocks", "--max-tokens", "3"]) == 0
    printed = came[0]
    assert_harmless(printed)
    assert STYLE.search(printed), "it is a terminal"
    assert f"   {PLAIN}\n{VISIBLE}" in printed and printed.count(f"  {PLAIN} {VISIBLE}  ") == 2
    assert "\x1b" not in STYLE.sub("", printed)


def test_chat_on_a_terminal_cannot_leak_a_sequence_in_pieces(
    says: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = iter(["hello", "half \udce9", ""])
    monkeypatch.setattr("builtins.input", lambda *_: next(said))
    says(HOSTILE)
    with on_a_terminal(monkeypatch) as came:
        assert main(["chat", "--max-tokens", "20", "--ignore-eos"]) == 2
    printed = came[0]
    assert_harmless(printed)
    assert f"{PLAIN}\n{VISIBLE}" in printed and "minipaged: error: messages[2]: content" in printed


def test_a_pipe_gets_every_text_as_it_is(
    says: Callable[[str], None], capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write = os.pipe()
    said = iter(["hello", ""])
    monkeypatch.setattr("builtins.input", lambda *_: next(said))
    says(HOSTILE)
    with monkeypatch.context() as patch, open(write, "w", encoding="utf-8", newline="") as pipe:
        patch.setattr(sys, "stdout", pipe)
        assert main(["generate", STEERING, "--show-blocks", "--max-tokens", "3"]) == 0
        assert main(["chat", "--max-tokens", "20", "--ignore-eos"]) == 0
    with open(read, encoding="utf-8", newline="") as piped:
        printed = piped.read()
    assert printed.count(f"  {STEERING}  ") == 2 and printed.count(HOSTILE) == 2


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "utf-8"])
def test_what_an_encoding_cannot_hold_is_replaced_alone(
    encoding: str, says: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in "oe")
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    text = "left é→안 right"
    says(text)
    assert main(["generate", text, "--show-blocks", "--max-tokens", "3"]) == 0
    assert main(["generate", "x", "--model", "no/such/model/안é"]) == 0  # the model is a stand-in
    assert main(["generate", "x", "--trace", "no-such-folder-안é/x.html"]) == 2
    expected = text.encode(encoding, "replace").decode(encoding)
    out.flush(), err.flush()
    assert out.buffer.getvalue().decode(encoding).count(expected) == 4  # type: ignore[attr-defined]
    name = "no-such-folder-안é/x.html".encode(encoding, "replace").decode(encoding)
    assert name in err.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]


def test_a_command_under_an_encoding_of_bytes() -> None:
    environment = os.environ | {"PYTHONIOENCODING": "cp1252", "PYTHONUTF8": "0"}
    command = [sys.executable, "-P", "-m", "minipaged", "lessons"]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert done.returncode == 0 and not done.stderr
    assert b"??" in done.stdout and b"lessons solved" in done.stdout


def test_texts_that_are_none_are_refused_before_a_model_is_loaded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minipaged.cli.options.make_llm", lambda *_: pytest.fail("loaded"))
    text = os.fsdecode(b"caf\xe9") if sys.platform != "win32" else "caf\udce9"
    for arguments in (
        ["generate", text],
        ["generate", "--chat", text],
        ["generate", "x", "--system", text],
        ["generate", "x", "--stop", text],
        ["chat", "--system", text],
    ):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and re.match(
            "minipaged: error: (prompt|system|stop) is no valid text", error
        )


def test_input_that_is_no_text_ends_no_chat(
    says: Callable[[str], None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9\nhello\n"), encoding="utf-8"))
    says("an answer")
    assert main(["chat", "--max-tokens", "2"]) == 2
    printed = capsys.readouterr()
    assert (
        printed.out.count("an answer") == 1
        and printed.err.count("\n") == 1
        and "no valid text" in printed.err
    )


def test_errors_and_warnings_cannot_steer_either(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(logging, "lastResort", logging.lastResort)
    monkeypatch.setattr("minipaged.cli.options.make_llm", lambda *_: pytest.fail("loaded"))
    assert main(["simulate", "--workload", STEERING]) == 2
    logging.lastResort.handle(logging.makeLogRecord({"msg": STEERING, "levelno": logging.WARNING}))  # type: ignore[union-attr]
    assert main(["generate", "x", "--no-such\x1b]0;mine\x07"]) == 2
    assert stream.getvalue().count(VISIBLE) == 1 and r"--no-such\x1b]0;mine\x07" in stream.getvalue()
    assert_harmless(stream.getvalue())


def test_nothing_that_a_console_prints_is_markup() -> None:
    for stream, expected in ((io.StringIO(), PLAIN), (Terminal(), f"{PLAIN} {VISIBLE}")):
        console = DataConsole(file=stream, width=400)
        text = f"{PLAIN} {STEERING}" if stream.isatty() else PLAIN
        table = Table(title=text)
        table.add_column(text)
        table.add_row(text)
        console.print(text)
        console.print(text, style="dim")
        console.print(Padding(text, (0, 2)))
        console.rule(text)
        console.print(table)
        console.write(text, (text, "bold"))
        with console.status(text):
            pass
        printed = STYLE.sub("", stream.getvalue())
        assert printed.count(expected) >= 9
        assert not {"\x07", "\x9b", "\u202e"} & set(printed)


def test_findings_and_results_are_data_too(tmp_path: Path) -> None:
    stream = io.StringIO()
    console = DataConsole(file=stream, width=200)
    doctor._print(console, doctor.Finding("package", False, f"missing: {PLAIN}"))
    path = tmp_path / "[bold]x[red].json"
    results.write_results(console, path, {"a": 1})
    arrived = [{"id": "A", "prompt": PLAIN, "prompt_tokens": 5, "sequences": 1}]
    step = {"step": 1, "arrived": arrived, "tables": {"A": {"blocks": [0, 2], "tokens": 5}}}
    draw_blocks(console, f'{{"block_size":4}}\n{json.dumps(step)}\n', {"A": PLAIN})
    printed = stream.getvalue()
    assert f"no  missing: {PLAIN}\n" in printed and f"A  {PLAIN}  5 tokens" in printed
    assert str(path) in printed and json.loads(path.read_text()) == {"a": 1}
