"""Each concept page answers three questions, and has the parts of a concept in their order."""

from __future__ import annotations

import re
import tomllib
from html import unescape
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONCEPTS = ROOT / "docs" / "concepts"
QUESTIONS = tomllib.loads((Path(__file__).with_name("questions.toml")).read_text(encoding="utf-8"))
PAGES = sorted(path.stem for path in CONCEPTS.glob("*.md") if path.stem != "index")
PARTS = [
    "The problem",
    "The picture",
    "The idea",
    "Try it",
    "The mathematics",
    "twins",
    "lesson",
    "Elsewhere",
]
OF_OTHER_FORM = {"limits", "settings"}  # a list, and a table


@pytest.mark.parametrize("name", PAGES)
def test_a_page_answers_its_three_questions(site: Path, name: str) -> None:
    page = (site / "concepts" / f"{name}.html").read_text(encoding="utf-8")
    article = page[page.index("<article") : page.index("</article>")]
    text = " ".join(unescape(re.sub(r"<[^>]+>", "", article)).split())
    assert len(QUESTIONS[name]) == 3
    for question, answer in QUESTIONS[name].items():
        assert question.endswith("?")
        assert answer in text, question


def test_there_is_no_question_without_a_page() -> None:
    assert sorted(QUESTIONS) == PAGES


@pytest.mark.parametrize("name", [name for name in PAGES if name not in OF_OTHER_FORM])
def test_a_concept_has_its_parts_in_order(name: str) -> None:
    found = []
    for line in (CONCEPTS / f"{name}.md").read_text(encoding="utf-8").splitlines():
        part = {"{{ twins": "twins", "{{ exerci": "lesson"}.get(line[:9], line.removeprefix("## "))
        if part in PARTS and part not in found:
            found.append(part)
    assert found == [part for part in PARTS if part in found]
    assert set(found) >= {"The problem", "The picture", "The idea", "Try it", "Elsewhere"}
