"""The playground's form: it and the picture agree, or the line below says that they don't."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

LOADING = 90_000  # milliseconds, for 13 MB of Python to be compiled on a busy machine
STILL = "The picture still shows the settings before."
VALUES = "(fields) => fields.map((field) => (field.type === 'checkbox' ? field.checked : field.value))"


@pytest.fixture
def home(visit: Callable[..., Any]) -> Any:
    """Home, open in a browser."""
    options = {"reduced_motion": "reduce", "color_scheme": "light"}
    return visit("index.html", viewport={"width": 1280, "height": 900}, **options)


def values(page: Any) -> Any:
    """What the fields of the form hold, and the slider."""
    return page.locator(":is(.pg-form, .pg-controls) :is(input, select)").evaluate_all(VALUES)


def after_error(page: Any) -> str:
    """The line below the form, once it is an error."""
    page.wait_for_selector(".pg-error", timeout=LOADING)
    return page.locator(".pg-status").inner_text()


def test_a_page_come_back_to_has_the_opening_scene_in_its_form(home: Any, address: str) -> None:
    opening = values(home)
    home.get_by_label("Prompt of A").fill("another prompt")
    home.get_by_label("Tokens of the answer to B").fill("2")
    home.locator(".pg-form select").nth(1).evaluate("(each) => (each.value = 128)")
    home.locator(".pg-check input").evaluate("(each) => (each.checked = true)")
    home.get_by_label("One step on").click()
    changed = values(home)
    assert sum(map(lambda pair: pair[0] != pair[1], zip(opening, changed, strict=True))) == 5
    home.goto(f"{address}lessons.html")
    home.go_back()
    home.wait_for_selector(".pg-now")
    assert values(home) == opening
    home.reload()
    home.wait_for_selector(".pg-now")
    assert values(home) == opening


@pytest.mark.parametrize(("typed", "has"), [("2.5", "has 2.5"), ("", "is empty"), ("-", "has no number")])
def test_an_answer_needs_a_whole_number(home: Any, asked: list[str], typed: str, has: str) -> None:
    asked.clear()
    field = home.get_by_label("Tokens of the answer to B")
    field.fill("")
    field.press_sequentially(typed)
    field.dispatch_event("change")
    assert after_error(home) == f"Answer to B: the field {has}. A whole number of tokens is needed. {STILL}"
    assert not [path for path in asked if "pyodide" in path], "no Python is needed to say so"
    home.get_by_label("Prompt of B").fill("")
    field.fill("")
    home.get_by_label("Prompt of C").fill("bees")
    home.get_by_label("Prompt of C").blur()
    assert home.locator(".pg-error").count() == 0, "a request without a prompt has no answer"


def test_an_error_says_that_the_picture_is_older(home: Any) -> None:
    home.get_by_label("Tokens of the answer to A").fill("0")
    home.get_by_label("Tokens of the answer to A").blur()
    assert after_error(home) == f"A: an answer of 0 tokens. An answer has at least 1 token. {STILL}"
    home.get_by_role("button", name="Three short requests").click()
    assert home.locator(".pg-error").count() == 0
    for name in "ABC":
        home.get_by_label(f"Prompt of {name}").fill("")
    home.get_by_label("Prompt of C").blur()
    assert after_error(home) == f"Write a prompt: one word is enough. {STILL}"


def test_without_javascript_a_sentence_says_so(browser: Any, site: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((site / "index.html").as_uri())
    words = "The playground needs JavaScript, which is off here. The text below explains its scenes."
    assert page.locator(".playground").inner_text() == words
    context.close()


def test_with_javascript_nothing_says_so(home: Any) -> None:
    assert home.locator(".playground noscript").count() == 0
