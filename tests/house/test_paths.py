"""Every path that a docstring, a comment or a page names is there."""

from __future__ import annotations

import io
import re
import subprocess
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOP = "benchmarks|docs|kernels|lessons|minipaged|reference|tests"
IN_A_FOLDER = rf"(?<![\w/.<])(?:{TOP})/[\w./-]*\w(?![\w<-])"
BARE_NAME = r"(?<![\w/.-])[a-z_0-9]+\.(?:py|md|toml)(?![\w(])"
PATH = re.compile(f"{IN_A_FOLDER}|{BARE_NAME}")
MADE_ELSEWHERE = {
    "exercise.py": "the learner's",
    "handed_in.py": "a learner's, in a teacher's folder",
    "conftest.py": "of pytest",
    "sitecustomize.py": "of Python",
    "setup.py": "of setuptools",
}


def tracked(*patterns: str) -> list[Path]:
    """Files of the repository that are no links."""
    found = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = [ROOT / line for line in found.stdout.splitlines()]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


SOURCES = tracked("minipaged/*.py", "reference/*.py", "kernels/*.py", "benchmarks/*.py", "lessons/*.py")
PAGES = tracked("*.md")
NAMES = {path.name for path in tracked()}


def prose(path: Path) -> str:
    """A page as a whole; of Python its comments and docstrings."""
    text = path.read_text()
    if path.suffix != ".py":
        return text
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return "\n".join(
        token.string
        for token in tokens
        if token.type == tokenize.COMMENT
        or (token.type == tokenize.STRING and token.string.startswith('"""'))
    )


def missing(text: str) -> set[str]:
    """The paths in a text that lead nowhere: from the root, or a file's bare name that no file has."""
    found = set(PATH.findall(text)) - MADE_ELSEWHERE.keys()
    return {name for name in found if not ((ROOT / name).exists() if "/" in name else name in NAMES)}


@pytest.mark.parametrize("path", [*SOURCES, *PAGES], ids=lambda path: str(path.relative_to(ROOT)))
def test_every_path_that_is_named_is_there(path: Path) -> None:
    assert not missing(prose(path))


def test_a_path_that_leads_nowhere_is_found() -> None:
    text = "see docs/concepts/sampling.md, kernels/attention.py, nowhere.py and sampler.py"
    assert missing(text) == {"docs/concepts/sampling.md", "nowhere.py"}
