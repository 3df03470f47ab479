"""The documentation site as `make docs` builds it: its links, and what a browser makes of it."""

from __future__ import annotations

import importlib.util
import logging
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "docs" / "_build"
AXE = BUILD / "node_modules" / "axe-core" / "axe.min.js"
KINDS = {
    "home": "index.html",
    "tutorial": "tutorials/walkthrough.html",
    "concept": "concepts/copy_on_write.html",
    "formulas": "concepts/attention.html",
    "lessons": "lessons.html",
    "api": "api/reference.html",
    "glossary": "glossary.html",
    "history": "history.html",
    "trace": "trace.html",
    "source": "source/reference/allocator.html",
    "lesson": "source/lessons/05_copy_on_write/task.html",
}


class Html(HTMLParser):
    """The ids of a page, and where it points to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.targets: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called for every tag."""
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        self.targets |= {values[name] for name in ("href", "src", "data-trace") if name in values}


@pytest.fixture(scope="session")
def pages(site: Path) -> dict[str, Html]:
    """Every page of the site but the one that a server shows for a wrong address."""
    paths = [path for path in site.rglob("*.html") if path.name != "404.html"]
    return {path.relative_to(site).as_posix(): Html(path) for path in paths}


def test_every_link_within_the_site_leads_somewhere(site: Path, pages: dict[str, Html]) -> None:
    lost = []
    for name, page in pages.items():
        for target in page.targets:
            url = urlsplit(urljoin(f"https://site/{name}", target))
            if url.netloc != "site":
                continue
            path = unquote(url.path).lstrip("/") or "index.html"
            path = f"{path}index.html" if path.endswith("/") else path
            if not (site / path).is_file() or (
                url.fragment and path in pages and unquote(url.fragment) not in pages[path].ids
            ):
                lost.append(f"{name}: {target}")
    assert len(pages) > 60
    assert lost == []


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    loads = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)=\"?(https?:)?//[^>]*>")
    found = [
        (path.name, match[0]) for path in site.rglob("*.html") for match in loads.finditer(path.read_text())
    ]
    assert [match for _, match in found if 'rel="canonical"' not in match] == []
    assert not re.search(r"url\([\"']?(https?:)?//", (site / "assets" / "site.css").read_text())


@pytest.mark.parametrize("name", ["lessons", "concepts/beam_search", "concepts/attention"])
def test_a_page_that_needs_the_room_has_no_table_of_contents(site: Path, name: str) -> None:
    """A wide table, the block view and twins."""
    text = (site / f"{name}.html").read_text()
    assert re.search(r'data-md-type="toc"\s+hidden', text)


def test_hover_texts_are_in_prose_and_not_in_code(site: Path) -> None:
    text = (site / "concepts" / "copy_on_write.html").read_text()
    assert "<abbr title=" in text
    assert not [
        code for code in re.findall(r"<(?:code|textarea|pre)\b.*?</(?:code|textarea|pre)>", text, re.S)
        if "<abbr" in code
    ]  # fmt: skip


# ---------------------------------------------------------------------- what pages ask of the build


@pytest.fixture(scope="session")
def hooks() -> ModuleType:
    """docs/_build/hooks.py as a module."""
    pytest.importorskip("mkdocs", reason="the site's tools are missing: make docs")
    return load("hooks")


def load(name: str) -> ModuleType:
    """A file of docs/_build as a module."""
    spec = importlib.util.spec_from_file_location(f"site_{name}", BUILD / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def ask(hooks: ModuleType) -> Callable[[str], str]:
    """A function from a page's Markdown to what the hooks make of it; the page is docs/concepts/a.md."""
    page = SimpleNamespace(file=SimpleNamespace(src_uri="concepts/a.md"), meta={})
    return lambda markdown: hooks.on_page_markdown(markdown, page=page, config=None, files=None)


@pytest.mark.parametrize(
    "line",
    [
        "{{ code reference/allocator.py BlockAllocator.gone }}",
        "{{ code reference/gone.py }}",
        "{{ twins allocator.py BlockAllocator.free | gone }}",
        "{{ twins gone.py BlockAllocator.free | launch_free }}",
        "{{ trace gone }}",
        "{{ trace beams 99 }}",
        "{{ picture gone }}",
        "{{ output minipaged gone }}",
        "{{ output rm -rf }}",
        "{{ exercise 99_gone }}",
        "{{ gone }}",
    ],
)
def test_a_page_that_asks_for_what_is_gone_fails_the_build(ask: Callable[[str], str], line: str) -> None:
    from mkdocs.exceptions import PluginError

    with pytest.raises(PluginError, match=r"concepts/a\.md.*"):
        ask(f"Text.\n\n{line}\n")


def test_a_listing_is_the_source_and_links_to_its_line(ask: Callable[[str], str]) -> None:
    lines = (ROOT / "reference" / "allocator.py").read_text().splitlines()
    first = lines.index("class BlockAllocator:")
    text = ask("{{ code reference/allocator.py BlockAllocator }}")
    assert "class BlockAllocator:\n" + lines[first + 1] in text
    assert f"(../source/reference/allocator.md#L{first + 1})" in text


def test_scripts_of_a_page_go_on_from_one_another(
    ask: Callable[[str], str], hooks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks.outputs, "MADE", tmp_path)
    made = ask("```python run\nx = 6\nprint(x)\n```\n\nAnd:\n\n```python run\nprint(x * 7)\n```\n")
    blocks = re.findall(r"```(\w+)\n(.*?)\n```", made, re.S)
    assert blocks == [
        ("python", "x = 6\nprint(x)"),
        ("text", "6"),
        ("python", "print(x * 7)"),
        ("text", "42"),
    ]


def test_a_page_whose_script_fails_fails_the_build(
    ask: Callable[[str], str], hooks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks.outputs, "MADE", tmp_path)
    with pytest.raises(Exception, match="gone"):
        ask("```python run\ngone\n```\n")


def test_an_exercise_points_to_what_to_read_and_where_to_write(ask: Callable[[str], str]) -> None:
    made = ask("{{ exercise 05_copy_on_write }}")
    assert '<div id="lesson-5"></div>' in made
    assert "[exercise.py](../source/lessons/05_copy_on_write/exercise.md)" in made
    assert "[README.md](../source/lessons/05_copy_on_write/task.md)" in made


def test_a_quiet_build_still_counts_warnings(hooks: ModuleType) -> None:
    logger = logging.getLogger("mkdocs")
    level = logger.level
    try:
        logger.setLevel(logging.ERROR)  # as --quiet does
        hooks.on_startup(command="build", dirty=False)
        assert logger.isEnabledFor(logging.WARNING) and not logger.isEnabledFor(logging.INFO)
    finally:
        logger.setLevel(level)


@pytest.mark.parametrize(
    ("line", "column"),
    [
        ('    <span class="k">return</span> x', 8),
        ('<span class="w">  </span><span class="n">x</span>', 6),
        ("x", 4),
        ('    <span class="c1"># why</span>', 6),
        ('<span class="sd">    What it does.</span>', 4),
    ],
)
def test_a_broken_line_goes_on_further_in(hooks: ModuleType, line: str, column: int) -> None:
    """Code by four columns, a comment by its sign, a docstring where it began."""
    page = SimpleNamespace(file=SimpleNamespace(src_uri="a.md"))
    html = f'<div class="listing"><span id="__span-0-1"><a id="l"></a>{line}\n</span></div>'
    made = hooks.on_page_content(html, page=page, config=None, files=None)
    assert made == html.replace('__span-0-1"', f'__span-0-1" style="--hang:{column}ch"')


def test_what_a_lesson_asks_for_is_said_briefly(hooks: ModuleType) -> None:
    assert hooks._briefly(["f", "A.x", "A.y", "g"]) == "`f`, `A` (2 methods), `g`"
    assert hooks._briefly(["f", "g", "A.x", "h"]) == "`f`, `g` and 2 more"


def test_a_folded_answer_is_markdown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("griffe", reason="the site's tools are missing: make docs")
    monkeypatch.syspath_prepend(BUILD)
    readme = tmp_path / "README.md"
    readme.write_text("<details><summary>Why?</summary>\n\n`x` is 1.\n\n</details>\n")
    assert '<details markdown="1"><summary>Why?</summary>' in load("sources").prose(readme)


def test_a_line_about_two_arguments_is_parted() -> None:
    pytest.importorskip("griffe", reason="the site's tools are missing: make docs")
    text = "Do it, and: more.\n\nArgs:\n    a, b: [n], of\n        one dtype.\n    c: a, b: no.\n"
    parted = "    a: [n], of\n        one dtype.\n    b: As `a`.\n    c: a, b: no.\n"
    docstrings = load("docstrings")
    assert docstrings.apart(text) == f"Do it, and: more.\n\nArgs:\n{parted}"
    assert docstrings.apart("keys, values: prose.\n") == "keys, values: prose.\n"


# ---------------------------------------------------------------------- in a browser


@pytest.fixture(scope="module", params=KINDS)
def each_kind(request: pytest.FixtureRequest, visiting: Callable[[], Any]) -> Iterator[Any]:
    """A page of each kind, opened once for all tests that look at it, in the light scheme."""
    with visiting() as open_page:
        yield open_page(KINDS[request.param], color_scheme="light", viewport={"width": 1280, "height": 900})


def test_a_page_is_accessible(each_kind: Any) -> None:
    page = each_kind
    page.set_viewport_size({"width": 1280, "height": 900})
    assert page.evaluate("document.body.dataset.mdColorScheme") == "default"
    page.evaluate(AXE.read_text())
    assert grave(page, "{}") == []
    page.evaluate("document.body.dataset.mdColorScheme = 'slate'")
    page.wait_for_function("document.getAnimations().every((each) => each.playState !== 'running')")
    assert grave(page, "{ runOnly: ['color-contrast', 'link-in-text-block'] }") == [], "in the dark scheme"
    page.evaluate("document.body.dataset.mdColorScheme = 'default'")


def test_a_page_cuts_nothing_where_there_is_room(each_kind: Any) -> None:
    """Listings, cells and tables fit a laptop without scrolling; the source pages show files as they are."""
    if "/source/" in each_kind.url:
        pytest.skip("a whole file, with its own line breaks")
    each_kind.set_viewport_size({"width": 1280, "height": 900})
    shown = "pre > code, .cell-code, .arithmatex, table"
    cut = each_kind.evaluate(
        """(shown) => [...document.querySelectorAll(shown)]
        .filter((each) => each.clientWidth && each.scrollWidth > each.clientWidth + 1)
        .map((each) => each.textContent.slice(0, 60))""",
        shown,
    )
    assert cut == []


def test_a_page_is_at_ease_on_a_phone(each_kind: Any) -> None:
    each_kind.set_viewport_size({"width": 360, "height": 740})
    wide = each_kind.evaluate("[document.documentElement.scrollWidth, document.body.scrollWidth]")
    assert max(wide) <= 360


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


def grave(page: Any, options: str) -> list[tuple[str, list[Any], str]]:
    """The serious and critical violations that axe-core finds: the rule, where, and what it says."""
    violations = page.evaluate(f"axe.run(document, {options}).then((found) => found.violations)")
    return [
        (each["id"], [node["target"] for node in each["nodes"]][:5], each["nodes"][0]["failureSummary"])
        for each in violations
        if each["impact"] in ("serious", "critical")
    ]


def test_a_page_with_a_recording_has_the_width_for_it(visit: Callable[..., Any]) -> None:
    page = visit("concepts/copy_on_write.html", viewport={"width": 1280, "height": 900})
    assert page.locator(".block-view").bounding_box()["width"] > 900
    assert page.locator(".md-sidebar--secondary").is_hidden()


def test_the_block_view_on_a_page_steps_to_a_copy(visit: Callable[..., Any]) -> None:
    page = visit("concepts/copy_on_write.html")
    view = page.locator(".block-view")
    view.locator(".bv-now").wait_for()
    assert view.locator(".bv-now").inner_text().startswith("Step 2"), "where something happens"
    view.focus()
    page.keyboard.press("ArrowLeft")
    assert "copy-on-write: block" not in view.inner_text()
    page.keyboard.press("ArrowRight")
    # Nine tokens of a prompt, blocks of four: three samples share block 13, and the last one keeps it.
    assert "copy-on-write: block 13 → 7 for A.0" in view.inner_text()
    assert "copy-on-write: block 13 → 9 for A.1" in view.inner_text()
    assert view.inner_text().count("copy-on-write: block") == 2


def test_a_page_from_a_folder_shows_its_recordings(browser: Any, site: Path) -> None:
    page = browser.new_page()
    page.goto((site / "concepts" / "preemption.html").as_uri() + "#scene=swap&step=13")
    views = page.locator(".block-view .bv-now")
    views.nth(1).wait_for()
    assert [text[:7] for text in views.all_inner_texts()] == ["Step 12", "Step 13"]
    page.close()


@pytest.mark.parametrize("width, layout", [(1280, "wide"), (390, "narrow")])
def test_a_picture_takes_the_room_of_its_page(visit: Callable[..., Any], width: int, layout: str) -> None:
    page = visit("concepts/attention.html", viewport={"width": width, "height": 900})
    shown = page.locator(".picture svg:visible")
    assert shown.count() == 1 and layout in shown.get_attribute("class")
    assert shown.bounding_box()["width"] == pytest.approx(720 if width > 720 else width - 32, abs=8)


def test_formulas_are_drawn(visit: Callable[..., Any]) -> None:
    page = visit("concepts/attention.html")
    page.locator(".katex").first.wait_for()
    assert page.locator(".arithmatex:not(:has(.katex))").count() == 0
    assert page.locator(".katex-error").count() == 0


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
def test_the_search_finds_the_page_on_the_topic_first(
    visit: Callable[..., Any], words: str, found: str
) -> None:
    page = visit("index.html", viewport={"width": 1280, "height": 900})
    page.keyboard.press("/")
    page.keyboard.insert_text(words)  # as a mouse pastes it: no key is pressed
    results = page.locator(".md-search-result__item > .md-search-result__link")
    results.first.wait_for()
    assert found in results.first.get_attribute("href")


def test_the_home_page_is_light(visit: Callable[..., Any]) -> None:
    page = visit("index.html")
    sizes = page.evaluate(
        "[...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]"
        ".map((entry) => [entry.name, entry.transferSize])"
    )
    total = sum(size for _, size in sizes)
    assert 100_000 < total < 1_000_000, sizes
    assert not [name for name, _ in sizes if "pyodide" in name], "Python is loaded when a reader asks for it"
