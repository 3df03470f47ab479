"""The twins of the pages: each quote of docs/_build/twins.toml is in the source, and a pair lights up."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BUILD = DOCS / "_build"
ASKED = {
    of: path.name
    for path in sorted(DOCS.rglob("*.md"))
    for of in re.findall(r"^\{\{ twins (.*) \}\}$", path.read_text(), re.M)
}


@pytest.fixture(scope="module")
def twins() -> ModuleType:
    """docs/_build/twins.py as a module."""
    pytest.importorskip("griffe", reason="the site's tools are missing: make docs")
    sys.path.insert(0, str(BUILD))
    spec = importlib.util.spec_from_file_location("site_twins", BUILD / "twins.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("of", ASKED)
def test_every_quote_is_a_line_of_the_source(twins: ModuleType, of: str) -> None:
    """Found again here by the text of the whole files, which twins.py doesn't read."""
    reference, kernel, pairs = twins.find(of)
    for side, field in ((reference, "reference"), (kernel, "kernel")):
        files = {code.file: (ROOT / code.file).read_text().splitlines() for code in side}
        lines = {line.strip() for text in files.values() for line in text}
        quoted = [line for pair in pairs for line in getattr(pair, field)]
        assert quoted and set(quoted) <= lines
        numbered = [
            (files[code.file][code.first - 1 + index].strip(), number)
            for code in side for index, number in enumerate(code.numbers) if number
        ]  # fmt: skip
        assert sorted(numbered) == sorted(
            (line, number) for number, pair in enumerate(pairs, 1) for line in getattr(pair, field)
        )


def test_pairs_are_kept_for_what_pages_ask_for_and_for_nothing_else(twins: ModuleType) -> None:
    assert set(twins.table()) == set(ASKED)
    assert len(ASKED) == 10


@pytest.mark.parametrize("of", ASKED)
def test_the_core_is_short(twins: ModuleType, of: str) -> None:
    for side in twins.find(of)[:2]:
        assert 2 <= sum(sum(twins.shown(code.numbers)) for code in side) <= 20
        assert all(any(code.numbers) for code in side), "a function without a line of a pair"


@pytest.mark.parametrize("quote", ["gone = 1", "return slots\nfor position in positions:"])
def test_a_quote_that_is_gone_or_out_of_order_fails(
    twins: ModuleType, monkeypatch: pytest.MonkeyPatch, quote: str
) -> None:
    of = "block_table.py slot_mapping | _slot_mapping_kernel"
    pair = twins.Pair("It.", quote.splitlines(), ["columns = positions // BLOCK_SIZE"])
    monkeypatch.setattr(twins, "table", lambda: {of: [pair]})
    with pytest.raises(LookupError, match="quotes a line that is not there"):
        twins.find(of)


def test_lines_that_are_not_quoted_are_folded_and_short_gaps_are_not(twins: ModuleType) -> None:
    assert twins.shown([0, 0, 1, 0, 2, 0, 0, 2, 0]) == [
        False,
        False,
        True,
        True,
        True,
        False,
        False,
        True,
        True,
    ]


# ---------------------------------------------------------------------- in a browser


def lit(page: Any, side: str) -> list[str]:
    """The lines of one side that are lit."""
    lines = page.locator(".twins").first.locator(f".twin[data-side='{side}'] .lit")
    return [line.strip() for line in lines.all_inner_texts()]


def test_a_line_lights_the_lines_that_do_the_same(visit: Callable[..., Any]) -> None:
    page = visit("concepts/block_table.html", viewport={"width": 1280, "height": 900})
    divide, columns = "index, offset = divmod(position, block_size)", "columns = positions // BLOCK_SIZE"
    twins = page.locator(".twins").first
    hint = twins.locator(".twins-hint")
    before = hint.inner_text()
    twins.get_by_text(divide).hover()
    assert (lit(page, "reference"), lit(page, "kernels")) == ([divide], [columns])
    assert hint.inner_text() == "2. Divide by the block size: the quotient is the entry of the table"

    hint.hover()
    assert lit(page, "reference") == lit(page, "kernels") == []
    assert hint.inner_text() == before

    twins.get_by_text(columns).hover()
    assert lit(page, "reference") == [divide], "from the kernel to the reference, too"
    hint.hover()

    twins.locator(".mark").first.focus()  # the keyboard
    assert lit(page, "reference") == ["for position in positions:"]
    page.keyboard.press("Tab")
    assert lit(page, "kernels") == [columns]
    assert "Divide by the block size" in page.evaluate("document.activeElement.getAttribute('aria-label')")


def test_the_rest_is_folded_until_it_is_asked_for(visit: Callable[..., Any]) -> None:
    page = visit("concepts/block_table.html", viewport={"width": 1280, "height": 900})
    twin = page.locator(".twin[data-side='kernels']").first
    docstring = twin.get_by_text("Slots of TILE tokens")
    assert not docstring.is_visible()
    assert twin.locator(".line:visible").count() < 15
    twin.get_by_label("Show all 27 lines").check()
    assert docstring.is_visible()
    assert twin.locator(".line:visible").count() == 27


def test_twins_stand_side_by_side_unless_the_kernel_is_much_longer(visit: Callable[..., Any]) -> None:
    page = visit("concepts/block_table.html", viewport={"width": 1280, "height": 900})
    places = page.evaluate(
        """[...document.querySelectorAll(".twins")].map((twins) => [...twins.querySelectorAll(".twin")]
        .map((twin) => [twin.getBoundingClientRect().left, twin.getBoundingClientRect().top]))"""
    )
    (mapping, its_kernel), (writing, its_longer_kernel) = places
    assert its_kernel[0] > mapping[0] and its_kernel[1] == mapping[1]
    assert its_longer_kernel[0] == writing[0] and its_longer_kernel[1] > writing[1]
    heights = page.evaluate(
        "[...document.querySelectorAll('.twin pre > code')].map((code) => getComputedStyle(code).lineHeight)"
    )
    assert len(set(heights)) == 1
