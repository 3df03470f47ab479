"""The copy button of a listing: what it copies is the source."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
# The theme copies by way of a text area that has the focus.
COPIED = """() => [...document.querySelectorAll(".listing")].map((listing) => {
    let copied = null;
    document.execCommand = () => ((copied = document.activeElement.value), true);
    listing.querySelector("[data-clipboard-target]").click();
    const twin = listing.closest(".twin");
    const beside = twin ? listing.previousElementSibling : listing.nextElementSibling;
    const lines = listing.querySelectorAll("span[id^=__span]");
    return [beside.querySelector("a.source").textContent, copied, lines.length];
})"""


def source(place: str, length: int) -> str:
    """So many lines of a file from a place as the site names it, less their common indent."""
    file, line = re.fullmatch(r"(\S+), line (\d+)", place).groups()  # type: ignore[union-attr]
    lines = (ROOT / file).read_text().splitlines()[int(line) - 1 :]
    indent = len(lines[0]) - len(lines[0].lstrip())
    return "\n".join(text[indent:] for text in lines[:length])


@pytest.mark.parametrize("screen", [WIDE, PHONE], ids=["wide", "phone"])
@pytest.mark.parametrize("name", ["concepts/copy_on_write", "concepts/attention", "tutorials/own_policy"])
def test_the_copy_button_copies_the_source(
    name: str, screen: dict[str, int], visit: Callable[..., Any]
) -> None:
    """Listings and twins, folded and with the box of all lines ticked."""
    page = visit(f"{name}.html", viewport=screen)
    page.wait_for_selector(".listing [data-clipboard-target]", state="attached")
    for _ in range(2):
        copied = page.evaluate(COPIED)
        assert copied
        for place, text, num_lines in copied:
            assert text == source(place, num_lines), place
        page.evaluate("document.querySelectorAll('.twin-whole input').forEach((box) => box.click())")
