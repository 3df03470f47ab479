"""Single pages of the site in a browser: recordings, pictures, formulas, wide tables, and the search."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

LAPTOP = {"width": 1280, "height": 900}
INDEX = "search/search_index.json"


def test_a_wide_table_shows_on_a_phone_that_it_goes_on(visit: Callable[..., Any]) -> None:
    page = visit("concepts/settings.html", viewport={"width": 360, "height": 740})
    wrap = page.locator(".md-typeset__scrollwrap").first
    assert wrap.evaluate("(each) => each.scrollWidth > each.clientWidth")
    head = wrap.locator("th").first
    head.evaluate("(each) => each.scrollIntoView({ block: 'center' })")
    edge = {"x": 350, "y": head.bounding_box()["y"] + 3, "width": 10, "height": 2}  # above the words
    at_the_beginning = page.screenshot(clip=edge)
    wrap.evaluate("(each) => (each.scrollLeft = each.scrollWidth)")
    assert page.screenshot(clip=edge) != at_the_beginning, "the shade is gone at the end"


def test_the_block_view_on_a_page_has_its_width_and_steps_to_a_copy(visit: Callable[..., Any]) -> None:
    page = visit("concepts/copy_on_write.html", viewport=LAPTOP)
    view = page.locator(".block-view")
    assert view.bounding_box()["width"] > 900
    assert page.locator(".md-sidebar--secondary").is_hidden()
    assert view.locator(".bv-now").inner_text().startswith("Step 2"), "where something happens"
    view.focus()
    page.keyboard.press("ArrowLeft")
    assert "copy-on-write: block" not in view.inner_text()
    page.keyboard.press("ArrowRight")
    # Nine tokens of a prompt, blocks of four: three samples share block 13, and the last one keeps it.
    assert "copy-on-write: block 13 → 7 for A.0" in view.inner_text()
    assert "copy-on-write: block 13 → 9 for A.1" in view.inner_text()
    assert view.inner_text().count("copy-on-write: block") == 2


@pytest.mark.parametrize("width", [1280, 1440, 1600, 2560])
def test_a_block_view_opened_by_a_link_is_seen_as_a_whole(visit: Callable[..., Any], width: int) -> None:
    page = visit("index.html", viewport={"width": width, "height": 900})
    page.evaluate("location.hash = '#scene=tour&step=5'")
    page.wait_for_function(
        "Math.abs(document.querySelector('.block-view').getBoundingClientRect().top - 60) < 15"
    )
    header, top, bottom = page.evaluate("""() => {
        const { top, bottom } = document.querySelector(".block-view").getBoundingClientRect();
        return [document.querySelector(".md-header").getBoundingClientRect().bottom, top, bottom];
    }""")
    assert header <= top and bottom <= 900


def test_without_javascript_a_page_says_so_and_has_no_button_that_does_nothing(
    browser: Any, site: Path
) -> None:
    page = browser.new_page(java_script_enabled=False)
    page.goto((site / "index.html").as_uri())
    for part in (".block-view", ".playground", ".cell-buttons"):
        assert "JavaScript, which is off here" in page.locator(part).first.inner_text()
    assert page.locator(".cell-buttons button:visible").count() == 0
    page.close()


def test_a_page_from_a_folder_shows_its_recordings(browser: Any, site: Path) -> None:
    page = browser.new_page()
    page.goto((site / "concepts" / "preemption.html").as_uri() + "#scene=swap&step=13")
    views = page.locator(".block-view .bv-now")
    views.nth(1).wait_for()
    assert [text[:7] for text in views.all_inner_texts()] == ["Step 12", "Step 13"]
    page.close()


def test_pictures_and_formulas_are_drawn_in_the_room_of_the_page(
    visit: Callable[..., Any], asked: list[str]
) -> None:
    asked.clear()
    page = visit("concepts/attention.html", viewport=LAPTOP)
    for width, layout in ((1280, "wide"), (390, "narrow")):
        page.set_viewport_size({"width": width, "height": 900})
        shown = page.locator(".picture svg:visible")
        assert shown.count() == 1 and layout in shown.get_attribute("class")
        assert shown.bounding_box()["width"] == pytest.approx(720 if width > 720 else width - 32, abs=8)

    assert page.locator(".arithmatex").count() == 10
    assert page.locator(".arithmatex:not(:has(.katex))").count() == page.locator(".katex-error").count() == 0
    page.wait_for_load_state("networkidle")
    katex = {path.removeprefix("assets/katex/") for path in asked if "katex" in path}
    fonts = {
        f"fonts/KaTeX_{name}.woff2"
        for name in ("Main-Regular", "Math-Italic", "Size1-Regular", "Size2-Regular")
    }
    assert katex == {"katex.min.css", *fonts}, "no script, and of the fonts those that the formulas need"


# ---------------------------------------------------------------------- the search


@pytest.fixture(scope="module")
def searched(visiting: Callable[[], Any], asked: list[str]) -> Iterator[Any]:
    """The home page with its search field open. The index came when the field was opened, and not before."""
    asked.clear()
    with visiting() as open_page:
        page = open_page("index.html", viewport=LAPTOP)
        page.wait_for_load_state("networkidle")
        assert INDEX not in asked
        with page.expect_response(lambda response: response.url.endswith(INDEX)):
            page.keyboard.press("/")
        yield page


@pytest.mark.parametrize(
    "words, found",
    [
        ("fragmentation", "concepts/fragmentation.html"),
        ("반갑습니다", "tutorials/walkthrough.html"),
        ("안녕하세요", "tutorials/walkthrough.html"),
        ("CoW", "concepts/copy_on_write.html"),
        ("copy on write", "concepts/copy_on_write.html"),
        ("quantization", "concepts/kv_cache.html"),
        ("page table", "concepts/block_table.html"),
        ("prefix cache", "concepts/prefix_cache.html"),
        ("vAttention", "history.html"),
    ],
)
def test_the_search_finds_the_page_on_the_topic_first(searched: Any, words: str, found: str) -> None:
    results = searched.locator(".md-search-result__item > .md-search-result__link")
    searched.locator(".md-search__input").fill("")
    results.first.wait_for(state="detached")
    searched.keyboard.insert_text(words)  # as a mouse pastes it: no key is pressed
    results.first.wait_for()
    assert found in results.first.get_attribute("href")


def test_an_address_can_ask(visit: Callable[..., Any]) -> None:
    page = visit("glossary.html?q=fragmentation", viewport=LAPTOP)
    result = page.locator(".md-search-result__item > .md-search-result__link").first
    result.wait_for()
    assert "concepts/fragmentation.html" in result.get_attribute("href")


def test_a_page_that_a_search_leads_to_marks_the_words(visit: Callable[..., Any]) -> None:
    page = visit("concepts/copy_on_write.html?h=fork", viewport=LAPTOP)
    page.locator("mark").first.wait_for()
    assert {text.lower() for text in page.locator("mark").all_inner_texts()} >= {"fork"}
