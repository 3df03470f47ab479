"""Every page of the site in a browser: what it weighs, who can read it, and that it fits laptop and phone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
MOST_BYTES = 700_000  # of a page and all that it loads by itself, uncompressed
LAPTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
DESK = {"width": 1440, "height": 900}
WRITTEN = [path.relative_to(DOCS) for path in sorted(DOCS.rglob("*.md")) if "_build" not in path.parts]
# Pages of source files differ in length alone: one of them is enough, and one of a lesson's.
MADE = ["glossary", "source/reference/allocator", "source/lessons/05_copy_on_write/task"]
SHOWN = "[...document.querySelectorAll('.block-view')].every((each) => each.querySelector('.bv-now'))"
PAGES = [*(path.with_suffix("").as_posix() for path in WRITTEN), *MADE]


@pytest.fixture(scope="module")
def reader(visiting: Callable[[], Any]) -> Iterator[Any]:
    """A browser's page that goes from one page of the site to the next, in the light scheme."""
    with visiting() as open_page:
        yield open_page("404.html", color_scheme="light", reduced_motion="reduce")


@pytest.fixture(scope="module", params=PAGES)
def each_page(request: pytest.FixtureRequest, reader: Any, address: str, asked: list[str]) -> Any:
    """A page, loaded once for all tests that look at it."""
    asked.clear()
    reader.set_viewport_size(LAPTOP)
    reader.goto(f"{address}{request.param}.html")
    reader.wait_for_function(SHOWN)
    return reader


def test_a_page_is_accessible(each_page: Any, grave: Callable[..., Any]) -> None:
    page = each_page
    page.set_viewport_size(LAPTOP)
    assert page.evaluate("document.body.dataset.mdColorScheme") == "default"
    assert grave(page) == []
    page.evaluate("document.body.dataset.mdColorScheme = 'slate'")
    assert grave(page, "color-contrast", "link-in-text-block") == [], "in the dark scheme"
    page.evaluate("document.body.dataset.mdColorScheme = 'default'")


def test_a_page_fits_a_laptop(each_page: Any) -> None:
    """Listings, cells and tables need no scrolling; the source pages show files as they are.

    A concept's cell is within two screens.
    """
    page = each_page
    page.set_viewport_size(LAPTOP)
    shown = ".arithmatex, table" if "/source/" in page.url else "pre > code, .cell-code, .arithmatex, table"
    cut = """(all) => all.filter((each) => each.clientWidth && each.scrollWidth > each.clientWidth + 1)
        .map((each) => each.textContent.slice(0, 60))"""
    assert page.locator(shown).evaluate_all(cut) == []
    if "/concepts/" in page.url and not page.url.endswith("index.html"):
        assert page.locator(".cell").first.bounding_box()["y"] < 2 * LAPTOP["height"]


def test_a_block_view_fits_the_screen_and_keeps_its_height(each_page: Any) -> None:
    """A desk and a laptop show all of it below the site's head. A phone has room for the tables, or the pool.

    No screen scrolls sideways. The desk is dark, laptop and phone are light.
    """
    page = each_page
    for size, scheme in ((LAPTOP, "default"), (DESK, "slate"), (PHONE, "default")):
        page.set_viewport_size(size)
        page.evaluate(f"document.body.dataset.mdColorScheme = '{scheme}'")
        for scene, heights, tables, pool, hidden, wide in page.evaluate(HEIGHTS):
            assert len(heights) == 1 and hidden == 0, f"{scene}: all tables are in sight at every step"
            room = size["height"] - page.locator(".md-header").bounding_box()["height"]
            assert (max(tables, pool) if size is PHONE else heights[0]) <= room, scene
            assert wide <= size["width"], f"{scene}: the page scrolls sideways"


HEIGHTS = """[...document.querySelectorAll(".block-view")].map((root) => {
    const heights = new Set();
    const lanes = root.querySelector(".bv-lanes");
    let [hidden, wide] = [0, 0];
    for (let step = 1; step <= Number(root.querySelector("input").max); step++) {
        root.blockView.goto(step);
        heights.add(root.offsetHeight);
        hidden = Math.max(hidden, lanes.scrollHeight - lanes.clientHeight);
        wide = Math.max(wide, document.documentElement.scrollWidth, root.getBoundingClientRect().right);
    }
    const high = (name) => root.querySelector(name).offsetHeight;
    return [root.dataset.scene, [...heights], high(".bv-main"), high(".bv-side"), hidden, wide];
})"""


def test_a_page_is_at_ease_on_a_narrow_phone(each_page: Any) -> None:
    """A cell that is far down has a link on the first screen."""
    page = each_page
    page.set_viewport_size({"width": 360, "height": 740})
    wide = page.evaluate("[document.documentElement.scrollWidth, document.body.scrollWidth]")
    assert max(wide) <= 360
    cell, link = page.locator(".cell"), page.locator(".to-cell a")
    if cell.count() and cell.first.bounding_box()["y"] > 3 * 740:
        assert link.bounding_box()["y"] < 740 / 2
        heading = page.locator("#" + link.get_attribute("href").partition("#")[2])
        between = cell.first.bounding_box()["y"] - heading.bounding_box()["y"]
        assert 0 < between < 740 / 2


def test_a_page_weighs_little(each_page: Any, asked: list[str], site: Path) -> None:
    """All that was asked for, since nobody has touched the page. Python and the search index were not."""
    each_page.wait_for_load_state("networkidle")
    sizes = {path: (site / path).stat().st_size for path in asked}
    heaviest = sorted(((size, path) for path, size in sizes.items()), reverse=True)
    total = sum(sizes.values())
    assert 400_000 < total < MOST_BYTES, "\n".join(f"{size:9,} {path}" for size, path in heaviest)
    assert not [path for path in sizes if "pyodide" in path or path.startswith("search/")]


def test_the_other_pages_are_no_heavier(site: Path) -> None:
    """They load what the pages above load. Of those the longest are on the list."""
    sizes = {
        path.relative_to(site).with_suffix("").as_posix(): path.stat().st_size
        for path in site.rglob("*.html")
    }
    assert set(PAGES) <= set(sizes)
    assert max(sizes, key=lambda name: sizes[name]) in PAGES
