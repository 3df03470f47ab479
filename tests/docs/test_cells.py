"""Cells of Python on the site's pages: what the build prints, and what a browser does when Run is pressed."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from html import unescape
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BUILD = Path(__file__).parents[2] / "docs" / "_build"
TABLE = "BlockTable(block_size=4, blocks=[11, 12], num_tokens=6) one of its slots: 49"
LOADING = 60_000  # milliseconds, for 13 MB of Python to be compiled on a busy machine
FIRST_OUTPUT = 3  # seconds, once Python has started


# ---------------------------------------------------------------------- in the build


@pytest.fixture(scope="module")
def cells() -> ModuleType:
    """docs/_build/cells.py as a module."""
    sys.path.insert(0, str(BUILD))
    spec = spec_from_file_location("site_cells", BUILD / "cells.py")
    assert spec and spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_cell_prints_when_built_what_it_prints_and_stays_as_it_was_written(cells: ModuleType) -> None:
    code = 'text = "<b> & **bold** _it_ `x` [a](b) \\n"\n\nprint(6 * 7, text)\n1 / 0\n'
    made = cells.cell(code)
    area, output = re.findall(r"<(?:textarea|pre)[^>]*>(.*?)</(?:textarea|pre)>", made)
    assert unescape(area) == code.rstrip()
    printed, red = re.fullmatch(r'(.*)<span class="cell-error">(.*)</span>', output).groups()  # type: ignore[union-attr]
    assert unescape(printed) == "42 <b> & **bold** _it_ `x` [a](b) \n\n"
    assert unescape(red) == "line 4: ZeroDivisionError: division by zero"
    numbers = re.findall(r"<span( class=\"cell-wrong\")?>(\d)</span>", made)
    assert [(number, bool(wrong)) for wrong, number in numbers] == [
        ("1", False), ("2", False), ("3", False), ("4", True),
    ]  # fmt: skip
    assert "\n" not in made, "a blank line would end the HTML, as Markdown has it"


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("def f():\n    return 1 / 0\n\nf()", ("line 2: ZeroDivisionError: division by zero", 2)),
        ("x = 1\nraise SystemExit(3)", ("line 2: SystemExit: 3", 2)),
        ("None", ("", 0)),
        (
            "import statistics\nstatistics.mode([])",
            ("line 2: statistics.StatisticsError: no mode for empty data", 2),
        ),
        ("x = 1\ny = (", ("line 2: SyntaxError: '(' was never closed", 2)),
        ("1\neval('(')", ("line 2: SyntaxError: '(' was never closed", 2)),
        ("while True: print('again')", ("line 1: RuntimeError: a cell prints 50,000 characters at most", 1)),
    ],
)
def test_a_cell_says_where_it_failed(cells: ModuleType, code: str, told: tuple[str, int]) -> None:
    """In the cell's own code, also where the exception comes out of a library."""
    assert cells.outputs.of_cell(code)[1:] == told


def test_forgotten_modules_are_read_anew(
    cells: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package and its modules, and no other one of a similar name."""
    (tmp_path / "of_cells").mkdir()
    (tmp_path / "of_cells" / "__init__.py").touch()
    (tmp_path / "of_cells" / "part.py").write_text("VALUE = 1")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "of_cells_too", ModuleType("of_cells_too"))
    code = "import of_cells.part as part; print(part.VALUE); part.VALUE = 2"
    assert [cells.outputs.of_cell(code)[0] for _ in range(2)] == ["1", "2"]
    sys.modules[cells.outputs.run_cell.__module__].forget_modules(str(tmp_path))
    assert cells.outputs.of_cell(code)[0] == "1"
    assert "of_cells_too" in sys.modules


def test_what_was_printed_before_an_error_stays(cells: ModuleType) -> None:
    assert cells.outputs.of_cell("print('before')\n{}['gone']")[0] == "before\n"


# ---------------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def home(visiting: Callable[[], Any]) -> Iterator[Any]:
    """The home page with its cell, opened once: Python takes its time to load."""
    with visiting() as open_page:
        yield open_page("index.html")


def wait_for_note(page: Any, note: str) -> None:
    page.wait_for_function(f"document.querySelector('.cell-note').textContent === '{note}'", timeout=LOADING)


def wait_for_output(page: Any, text: str) -> None:
    page.wait_for_function(
        f"document.querySelector('.cell-output').textContent.includes('{text}')", timeout=LOADING
    )


def output(page: Any) -> str:
    return str(page.locator(".cell-output").first.inner_text())


def run(page: Any, note: str = "done") -> str:
    """Press Run in the first cell, and return what it prints."""
    page.locator(".cell-run").first.click()
    wait_for_note(page, note)
    return output(page)


def numbers(page: Any) -> tuple[list[str], list[str]]:
    """The numbers of the first cell's lines, and those that are red."""
    lines = page.locator(".cell-lines").first
    return lines.locator("span").all_inner_texts(), lines.locator(".cell-wrong").all_inner_texts()


def test_a_cell_runs_in_the_browser(home: Any) -> None:
    page = home
    code, built = page.locator(".cell-code").first, output(page)
    first = code.input_value()

    page.evaluate("document.querySelector('.cell-output').textContent = ''")
    printed = run(page)
    assert printed.splitlines()[0] == TABLE
    assert printed == built, "what the build printed is what the browser prints"

    code.fill(
        "from minipaged.reference.kv_cache_size import bytes_per_token as size\nprint(size(40, 40, 128, 2))"
    )
    assert run(page) == "819200"

    code.fill("name = input('Name? ')")  # the console stays empty: `visiting` looks
    assert "line 1: RuntimeError: a cell can't ask" in run(page, "ended with an exception")

    code.fill("6 * 7\n'a' + 'b'")
    assert run(page) == "'ab'", "the value of the last line"
    code.fill("x = 6 * 7")
    assert run(page, "done, nothing printed") == ""

    page.locator(".cell-reset").first.click()
    assert code.input_value() == first
    assert output(page) == built


def test_what_a_cell_changes_in_a_module_is_gone_at_the_next_run(home: Any) -> None:
    page = home
    page.locator(".cell-reset").first.click()
    built = output(page)
    page.locator(".cell-code").first.fill(
        "from minipaged.reference.allocator import BlockAllocator\n"
        "BlockAllocator.allocate = lambda self, n: [0] * n\nprint('changed')"
    )
    assert run(page) == "changed"
    page.locator(".pg-form select").first.select_option("8")
    page.wait_for_function(
        "document.querySelector('.pg-status').textContent.startsWith('Just computed')", timeout=LOADING
    )
    page.locator(".cell-reset").first.click()
    page.evaluate("document.querySelector('.cell-output').textContent = ''")
    begun = time.monotonic()
    assert run(page) == built
    assert time.monotonic() - begun < FIRST_OUTPUT


def test_an_error_is_red_and_names_its_line(home: Any) -> None:
    page = home
    page.locator(".cell-code").first.fill("print('before')\n{}['gone']\nprint('after')")
    assert numbers(page) == (["1", "2", "3"], [])
    assert run(page, "ended with an exception") == "before\nline 2: KeyError: 'gone'"
    assert page.locator(".cell-error").first.inner_text() == "line 2: KeyError: 'gone'"
    assert numbers(page) == (["1", "2", "3"], ["2"])
    red, black = (
        page.evaluate(f"getComputedStyle(document.querySelector('{part}')).color")
        for part in (".cell-error", ".cell-output")
    )
    assert red == page.evaluate("getComputedStyle(document.querySelector('.cell-wrong')).color") != black

    page.locator(".cell-code").first.fill("print('right')")
    assert numbers(page) == (["1"], []), "what is written now is not wrong yet"
    assert run(page) == "right"


def test_what_an_endless_loop_printed_stays_when_it_is_stopped(home: Any) -> None:
    page = home
    page.locator(".cell-code").first.fill(
        "print('before', end='')\nprint(' the loop')\nwhile True:\n    pass"
    )
    page.locator(".cell-run").first.click()
    wait_for_output(page, "before the loop")
    assert page.locator(".cell-note").first.inner_text() == "running ..."
    assert page.locator(".cell-run").first.inner_text() == "Stop"
    page.locator(".cell-run").first.click()
    assert page.locator(".cell-note").first.inner_text() == "stopped"
    assert page.locator(".cell-run").first.inner_text() == "Run"
    assert output(page) == "before the loop"

    page.locator(".cell-code").first.fill("print(6 * 7)")
    assert run(page) == "42", "a stopped Python starts again"


def test_a_loop_that_prints_for_ever_ends_by_itself(home: Any) -> None:
    page = home
    page.locator(".cell-code").first.fill("while True:\n    print('again')")
    printed = run(page, "ended with an exception")
    assert printed.startswith("again\nagain\n")
    assert printed.endswith("line 2: RuntimeError: a cell prints 50,000 characters at most")


def test_a_cell_works_with_the_keyboard_alone(home: Any) -> None:
    page = home
    page.locator(".cell-reset").first.click()
    code = page.locator(".cell-code").first
    code.focus()
    page.keyboard.press("Control+Home")
    page.keyboard.press("Tab")
    assert code.input_value().startswith("    from ")
    page.keyboard.press("Escape")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.matches('.cell-run')")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Control+A")
    page.keyboard.type("print(6 * 7)")
    page.keyboard.press("Control+Enter")
    wait_for_note(page, "done")
    assert output(page) == "42"


def follow(page: Any, name: str, title: str) -> None:
    """Click on the first link to a page, and wait for it."""
    page.locator(f".md-content a[href$='{name}.html']").first.click()
    page.wait_for_function("(title) => document.querySelector('h1').textContent.startsWith(title)", arg=title)


def test_python_goes_on_through_a_visit(home: Any) -> None:
    """Once it has started, a cell's first output comes within 3 seconds on every page."""
    page = home
    run(page)
    page.evaluate("window.sameVisit = true")
    started: list[str] = []
    page.on("worker", lambda worker: started.append(worker.url))

    follow(page, "fragmentation", "Fragmentation")
    page.evaluate("document.querySelector('.cell-output').textContent = ''")
    begun = time.monotonic()
    page.locator(".cell-run").first.click()
    wait_for_output(page, "wasted")
    assert time.monotonic() - begun < FIRST_OUTPUT

    page.go_back()
    page.wait_for_function("document.querySelector('h1').textContent.startsWith('minipaged')")
    assert run(page).splitlines()[0] == TABLE
    assert page.evaluate("window.sameVisit"), "pages were swapped, not loaded"
    assert started == []


def test_a_cell_that_is_left_stops(home: Any) -> None:
    page = home
    page.locator(".cell-code").first.fill("print('busy')\nwhile True: pass")
    page.locator(".cell-run").first.click()
    wait_for_output(page, "busy")
    with page.expect_event("worker"):  # the next Python, in place of the busy one
        follow(page, "fragmentation", "Fragmentation")
    assert "wasted" in run(page)
