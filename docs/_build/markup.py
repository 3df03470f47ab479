"""What a page's HTML gets when Markdown has made it: recordings, hover texts, the breaks of long lines."""

from __future__ import annotations

import re
from html import escape

import outputs
import twins

CODE_LINE = re.compile(
    r'(?P<opening><span id="__span-\d+-\d+")(?P<start>>(?:<a [^>]*></a>)?'
    r'(?:<span class="w">)?(?P<indent> *)(?:</span>)?(?:<span class="(?P<kind>\w+)">)?(?P<more> *))'
)
BROKEN = {"sd": 0, "c1": 2}  # how much further in a broken line goes on: docstrings and comments; code 4
ABBREVIATION = re.compile(
    r"(?P<heading><h[1-6][ >].*?</h[1-6]>)|<abbr title=\"(?P<text>[^\"]*)\">(?P<term>.*?)</abbr>", re.DOTALL
)


def complete(html: str) -> str:
    """Return the HTML of a page with all that it needs.

    A term is explained once a page. Lines of listings know where they go on when a narrow column breaks them.
    """
    html = _link_to_cell(_first_mentions(html)) + _recordings(html)
    if 'class="listing"' in html:
        html = twins.fold(CODE_LINE.sub(_hanging, html))
    return html


def _link_to_cell(html: str) -> str:
    """Put a link to the first cell below the title if a block view, two screens of a phone, is before it."""
    view, cell = html.find('class="block-view"'), html.find('class="cell"')
    if not 0 <= view < cell:
        return html
    heading = re.findall(r'<h2 id="([\w-]+)"', html[:cell])[-1]
    link = f'<p class="to-cell" data-search-exclude><a href="#{heading}">Run it in a cell</a></p>'
    return html.replace("</h1>", f"</h1>{link}", 1)


def _recordings(html: str) -> str:
    """The traces and tours that a page names, inside it: a page read from a folder may not load a file.

    They are templates, because the theme runs every script of a page that it swaps in, whatever its type.
    """
    names = sorted(set(re.findall(r'data-(trace|tour)="#\w+-(\w+)"', html)))
    templates = []
    for kind, name in names:
        path = outputs.TRACES / f"{name}.{'jsonl' if kind == 'trace' else 'json'}"
        text = escape(path.read_text(encoding="utf-8"), quote=False)
        templates.append(f'<template id="{kind}-{name}" data-search-exclude>{text}</template>')
    return "".join(templates)


def _hanging(line: re.Match[str]) -> str:
    """The beginning of a line of code, with the column where it goes on if it is broken."""
    column = len(line["indent"] + line["more"]) + BROKEN.get(line["kind"], 4)
    return f'{line["opening"]} style="--hang:{column}ch"{line["start"]}'


def _first_mentions(html: str) -> str:
    """Keep the hover text of a term at its first mention outside of a heading, and nowhere else."""
    seen: set[str] = set()

    def keep(match: re.Match[str]) -> str:
        if match["heading"]:
            return ABBREVIATION.sub(lambda inner: inner["term"] or inner[0], match[0][4:-5]).join(
                (match[0][:4], match[0][-5:])
            )
        if match["text"] in seen:
            return match["term"]
        seen.add(match["text"])
        return match[0]

    return ABBREVIATION.sub(keep, html)
