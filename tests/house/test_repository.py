"""The public address stands in pyproject.toml as REPOSITORY, and all other places agree with it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from minipaged.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
README = (ROOT / "README.md").read_text()


def disagreements(project: dict[str, Any], readme: str) -> list[str]:
    """Where pyproject's URLs or the README don't say what REPOSITORY says."""
    address = project["tool"]["minipaged"]["REPOSITORY"]
    urls = project["project"].get("urls", {})
    if not address:
        return [f"pyproject.toml: urls {urls}, and REPOSITORY is empty"] * bool(urls) + [
            "README.md: git clone, and REPOSITORY is empty"
        ] * ("git clone" in readme)
    return [f'pyproject.toml: [project.urls] needs Repository = "{address}"'] * (
        urls.get("Repository") != address
    ) + [f"README.md: the first steps need git clone {address}"] * (f"git clone {address}" not in readme)


def test_the_address_is_the_same_everywhere() -> None:
    assert not disagreements(PROJECT, README)


def test_the_readme_is_short() -> None:
    assert len(README.encode()) <= 6_000


@pytest.mark.parametrize(
    ("address", "urls", "readme", "count"),
    [
        ("", {}, "make demo", 0),
        ("", {"Repository": "https://example.org/a"}, "git clone x", 2),
        ("https://example.org/a", {}, "make demo", 2),
        (
            "https://example.org/a",
            {"Repository": "https://example.org/b"},
            "git clone https://example.org/a",
            1,
        ),
        (
            "https://example.org/a",
            {"Repository": "https://example.org/a"},
            "git clone https://example.org/a",
            0,
        ),
    ],
)
def test_a_disagreement_is_found(address: str, urls: dict[str, str], readme: str, count: int) -> None:
    project = {"tool": {"minipaged": {"REPOSITORY": address}}, "project": {"urls": urls}}
    assert len(disagreements(project, readme)) == count


def missing_commands(text: str) -> set[str]:
    """Commands in a text that nobody can run: of make, of minipaged, and folders that pytest is given."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    missing = {
        f"make {name}" for name in re.findall(r"(?<![\w-])make ([a-z-]+)", text) if name not in targets
    }
    words = re.findall(r"(?:`|\$ )minipaged ([a-z]+)", text)
    missing |= {f"minipaged {name}" for name in words if name not in COMMANDS}
    for folders in re.findall(r"(?:`|\$ )pytest ((?:[\w./]+ ?)+)", text):
        missing |= {f"pytest {folder}" for folder in folders.split() if not (ROOT / folder).exists()}
    return missing


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_every_command_exists(page: str) -> None:
    assert not missing_commands((ROOT / page).read_text())


def test_a_command_that_does_not_exist_is_found() -> None:
    text = (
        "`make demo`, `make coffee`, `minipaged chat`, `minipaged fly 3`, `pytest tests/house tests/nothing`"
    )
    assert missing_commands(text) == {"make coffee", "minipaged fly", "pytest tests/nothing"}
