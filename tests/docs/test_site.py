"""The documentation site as `make docs` builds it: its links, and what its pages may ask of the build."""

from __future__ import annotations

import importlib.util
import logging
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType, SimpleNamespace
from urllib.parse import unquote, urljoin, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "docs" / "_build"


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


def test_a_formula_is_drawn_by_the_build_and_a_wrong_one_fails_it(hooks: ModuleType) -> None:
    from mkdocs.exceptions import PluginError

    drawn = hooks.on_post_page(
        r'<p><span class="arithmatex">\(a &lt; b\)</span>.</p>', page=None, config=None
    )
    assert '<annotation encoding="application/x-tex">a &lt; b</annotation>' in drawn
    assert drawn.startswith('<p><span class="arithmatex"><span class="katex">')
    assert drawn.endswith("</span></span>.</p>")
    with pytest.raises(PluginError, match="KaTeX"):
        hooks.on_post_page(r'<div class="arithmatex">\[\gone\]</div>', page=None, config=None)


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
