"""Every Python block and command of the pages and the README is run, or listed with the reason."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *(p for p in sorted((ROOT / "docs").rglob("*.md")) if "_build" not in p.parts)]
SLOW = os.environ.get("MINIPAGED_DOCS_SLOW") == "1"
BLOCK = re.compile(r"^```(python|bash|console|sh)( \w+)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# Commands that no test types, each with the reason. One that stands on no page any more must go from here.
NOT_RUN = {
    "make demo": "installs into .venv; the engine behind it has tests of its own",
    "make test": "would run itself",
    ". .venv/bin/activate": "of the clone; the tests' own environment is as after it",
    "pytest lessons/": "the exercises are unsolved: it fails, as it should; tests/lessons has it",
    "pytest lessons/03_allocator --submission=handed_in.py --json=points.json": "a teacher's file; "
    "tests/lessons/test_cheats.py has it with one",
    "minipaged lessons diff 3": "the exercise is unsolved; tests/lessons/test_diff.py has it with solutions",
    "minipaged lessons watch": "runs until it is stopped; tests/lessons has it",
    "minipaged chat": "waits for a person to type",
    "minipaged bench": "minutes",
    "minipaged bench prefix": "minutes",
    "minipaged bench paper --figures 15": "minutes",
    "minipaged simulate --model opt-13b --gpu a100-40gb --workload alpaca": (
        "minutes; tests/simulator has it with shorter traces"
    ),
    "minipaged simulate --model path/to/config.json --gpu h100-80gb --num-gpus 2 --workload lengths.jsonl "
    "--latency-target 0.05": "the reader's own model and lengths",
    'minipaged generate --model Qwen/Qwen2.5-0.5B-Instruct --chat "What is a page table?"': "downloads",
    'minipaged generate --model ./my-finetune --dtype bfloat16 "Once upon a time"': "the reader's own model",
    'minipaged generate --use lessons/03_allocator/exercise.py "What is a page table?"': (
        "the exercise is unsolved; tests/lessons/test_use.py has it with a solution"
    ),
}


def blocks(path: Path, *languages: str) -> list[str]:
    """The fenced blocks of a page in these languages, but not the cells: the build runs those."""
    return [text for name, kind, text in BLOCK.findall(path.read_text()) if name in languages and not kind]


def commands(path: Path) -> list[str]:
    """What a page tells readers to type in a shell: in a console block, what stands after a $."""
    found = []
    for block in blocks(path, "bash", "sh", "console"):
        lines = block.replace("\\\n", " ").splitlines()
        typed = [line[2:] for line in lines if line.startswith("$ ")] or lines
        found += [line.split("  #")[0].strip() for line in typed]
    return [line.removeprefix(".venv/bin/") for line in found if line and not line.startswith("#")]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


WITH_PYTHON = [path for path in PAGES if blocks(path, "python")]
COMMANDS = sorted({command for path in PAGES for command in commands(path)})


def environment() -> dict[str, str]:
    """As a reader has it who has activated the virtual environment."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return os.environ | {"PATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.mark.model
@pytest.mark.parametrize("path", WITH_PYTHON, ids=name)
def test_the_python_of_a_page_runs(path: Path, tmp_path: Path) -> None:
    if path.name != "README.md" and not SLOW:
        pytest.skip("starts a model: make docs-check runs it")
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks(path, "python")), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environment(), capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("command", [each for each in COMMANDS if each not in NOT_RUN])
def test_a_command_of_the_pages_works(command: str, tmp_path: Path) -> None:
    if "generate" in command and not SLOW:
        pytest.skip("starts a model: make docs-check runs it")
    (tmp_path / "lessons").symlink_to(ROOT / "lessons")
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env=environment(), capture_output=True, text=True,
        stdin=subprocess.DEVNULL, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-1000:]


def test_nothing_is_excused_that_no_page_asks_for() -> None:
    assert set(NOT_RUN) - set(COMMANDS) == set()
