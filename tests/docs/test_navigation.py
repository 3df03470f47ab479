"""Pages that the theme swaps in for another one do what they do when they are loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# One page of each kind, and what JavaScript makes there.
SWAPPED = {
    "concepts/preemption.html": ".block-view[data-scene='swap'] .bv-now",
    "concepts/attention.html": ".katex",
    "concepts/index.html": "h1",
    "index.html": ".pg-now",
    "tutorials/walkthrough.html": ".bv-now",
    "trace.html": "h1",
    "api/reference.html": "h1",
    "lessons.html": "table",
    "history.html": "table",
    "paper.html": ".katex",
    "kernel_resources.html": "table",
    "glossary.html": "h1",
    "source/reference/allocator.html": "h1",
    "source/lessons/05_copy_on_write/task.html": "h1",
}


def test_a_page_that_is_swapped_in_works_as_a_loaded_one(visit: Callable[..., Any]) -> None:
    """The theme runs every script of the page it comes to. The console stays empty: `visit` looks."""
    page = visit("concepts/kv_cache.html", viewport={"width": 1280, "height": 900})
    page.evaluate("window.sameVisit = true")
    for name, made in SWAPPED.items():
        title = page.locator("h1").inner_text()
        page.evaluate(
            """(name) => {
                const link = Object.assign(document.createElement("a"), { href: new URL(name, BASE) });
                document.querySelector(".md-content").append(link);
                link.click();
            }""",
            name,
        )
        page.wait_for_function("(before) => document.querySelector('h1').innerText !== before", arg=title)
        page.locator(made).first.wait_for()
        if made == ".katex":  # its style sheet is in the head of this page alone
            page.wait_for_function(
                "getComputedStyle(document.querySelector('.katex-mathml')).position === 'absolute'"
            )
        assert page.url.endswith(name)
        views, started = (page.locator(f".block-view{each}").count() for each in ("", ":has(.bv-now)"))
        assert views == started, name
    assert page.evaluate("window.sameVisit"), "no page was loaded"
