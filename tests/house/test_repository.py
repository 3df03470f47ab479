"""The public address stands in pyproject.toml as REPOSITORY, and all other places agree with it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

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
