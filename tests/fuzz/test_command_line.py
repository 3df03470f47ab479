"""Every option of every command with hostile values: exit code 0, or 2 with one line that says what is wrong.

The commands run in this process. generate and chat have a stubbed model, simulate has its answers given, and
lessons have a copy of their own.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from how_often import how_often

import minipaged.models.loading
from minipaged.cli import doctor
from minipaged.cli import main as cli
from minipaged.cli.bench import load_benchmarks
from minipaged.course import command as lessons
from minipaged.models.loading import load_model
from minipaged.simulator import command as simulator
from minipaged.simulator.systems import Point

NO_TEXT = "caf\udce9"  # as Python reads bytes of an argument that are no UTF-8
VALUES = [
    *("", " ", "0", "-1", "1", "3", "00", "+2", "1e3", "1.5", "nan", "inf", "-inf", "1e400", "0x10", "1_0"),
    *("9" * 12, "9" * 15, "9" * 30, "9" * 5000, "x" * 300, "/" + "x" * 300, NO_TEXT, "\x1b]0;t\x07", "a\nb"),
    *("--", "--help", "-n", "none", "true", "[bold]", "é안😀", "512MiB", "9" * 400 + "GiB", "../..", "*"),
    *("~nobody/x", "/dev/full", "/dev/null", "/proc/x", "/", "smollm2-135m/../x", "$(id)", "%s%n", "{0}"),
]
COMMANDS: dict[str, list[str]] = {
    "generate": ["generate", "hi", "--max-tokens=2", "--num-blocks=13"],
    "chat": ["chat", "--max-tokens=2"],
    "simulate": ["simulate", "--workload=alpaca", "--minutes=0.1", "--processes=1"],
    "lessons": ["lessons"],
    "lessons hint": ["lessons", "hint"],
    "lessons reset": ["lessons", "reset"],
    "lessons watch": ["lessons", "watch"],
    "lessons copy": ["lessons", "copy"],
    "doctor": ["doctor"],
    "bench": ["bench"],
}
DOCUMENTED = (0, 2, 130)


def parameters(command: str) -> list[str]:
    """The options of a command, and "" for an argument that stands alone."""
    group: Any = cli.typer.main.get_command(cli.app)
    with group.make_context("minipaged", [command.split()[0]], resilient_parsing=True) as context:
        found = group
        for name in command.split():
            found = found.get_command(context, name)
        return ["", *(option for each in found.params for option in each.opts if option.startswith("-"))]


CASES = [(command, option) for command in COMMANDS for option in parameters(command)]


def test_no_option_is_left_out() -> None:
    assert {command.split()[0] for command in COMMANDS} == set(cli.COMMANDS)
    assert {"--beam-width", "-n", "--use", "--trace", "--sampling-seed"} <= {option for _, option in CASES}
    assert len(VALUES) >= 30 and len(CASES) > 60


def an_answer(question: simulator.Question) -> simulator.Answer:
    """As fast as simulations are slow, once the requests are drawn."""
    assert question.traffic.requests(1.0)
    return simulator.Answer(1.0, 1.0, 1.0, 1.0, 0.0, 0, 0.05, 0.0, [Point(1.0, 0.05)])


def one_process(count: int) -> Any:
    """What runs simulations: this process, for it knows the answers."""
    assert 1 <= count <= 12, "no more processes than there are settings"
    return nullcontext(map)


def interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def no_network(*_: Any, **__: Any) -> None:
    raise ConnectionError("no network")


@pytest.fixture(scope="module")
def load_once(tiny_chat_model: Path) -> Callable[..., Any]:
    """`load_model`, which loads each model once, and a tiny one as the default."""

    @cache
    def load(model: str, **settings: Any) -> Any:
        return load_model(str(tiny_chat_model) if model == "smollm2-135m" else model, **settings)

    return load


@pytest.fixture
def run(
    load_once: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Callable[[list[str]], tuple[int, str]]:
    """A function that runs a command in a folder of its own: its exit code, and what it says is wrong."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(minipaged.models.loading, "load_model", load_once)
    monkeypatch.setattr(huggingface_hub, "model_info", no_network)
    monkeypatch.setattr(doctor, "checks", list)
    monkeypatch.setattr(simulator, "find_answer", an_answer)
    monkeypatch.setattr(simulator, "processes", one_process)
    monkeypatch.setattr(lessons.subprocess, "run", interrupt)  # a watch that never ends
    load_benchmarks()
    monkeypatch.setattr(import_module("benchmarks.huggingface.bench"), "run", lambda _: None)

    def run_command(arguments: list[str]) -> tuple[int, str]:
        if arguments[0] == "lessons" and not Path("lessons").exists():
            assert cli.main(["lessons", "copy", "lessons"]) == 0
        said = iter(["hello"])
        monkeypatch.setattr("builtins.input", lambda: next(said, ""))
        capfd.readouterr()
        try:
            code = cli.main(arguments)
        except SystemExit as end:  # argparse's help of a bench
            code = int(end.code or 0)
        return code, capfd.readouterr().err

    return run_command


@pytest.mark.parametrize(("command", "option"), CASES, ids=lambda name: str(name).replace(" ", "_") or "_")
def test_a_hostile_value_is_refused_in_one_line(
    command: str, option: str, run: Callable[[list[str]], tuple[int, str]]
) -> None:
    values = random.Random(f"{command} {option}").sample(VALUES, min(len(VALUES), how_often(3, len(VALUES))))
    for value in values:
        code, error = run([*COMMANDS[command], *([option] if option else []), value])
        assert code in DOCUMENTED, value
        if code == 2:
            assert error.startswith("minipaged: error: ") and error.count("\n") == 1, (value, error)
        assert "Traceback" not in error, value
