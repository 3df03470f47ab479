"""Reference and kernel side by side: the lines that do the same, with one number, and the rest folded.

docs/_build/twins.toml quotes these lines. A quote that is no longer in the source fails the build. The page
numbers the pairs, so that they can be read without a pointer; twins.js lights them.
"""

from __future__ import annotations

import html
import re
import tomllib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import sources

TABLE = Path(__file__).with_name("twins.toml")
FOLDERS = {"reference": "Reference", "kernels": "Kernel"}
MUCH_LONGER = 1.9  # a kernel with so many times the lines of its reference stands below it
SHORT = 1  # so many lines between two that are shown are shown as well
HINT = (
    "Point at a line, or move to its number with Tab: the lines of the other side that do the same light up."
)
LISTING = re.compile(r'<div class="listing" data-does="([^"]*)" data-pairs="([\d ]+)">.*?</code>', re.DOTALL)
LINE = re.compile(r'<span (?=id="__span-\d+-(\d+)")([^>]*)>(<a [^>]*></a>)?')


class Pair(NamedTuple):
    """Lines of a reference, and the lines of its kernel that do the same."""

    does: str
    reference: list[str]
    kernel: list[str]


class Code(NamedTuple):
    """A function of one side: where it stands, its lines, and the number of each line's pair (0 for none)."""

    file: str
    name: str
    first: int
    lines: list[str]
    numbers: list[int]


def table() -> dict[str, list[Pair]]:
    """The pairs of each of the twins, by what a page asks for."""
    entries = tomllib.loads(TABLE.read_text(encoding="utf-8"))["twins"]
    return {entry["of"]: [_pair(each) for each in entry["pairs"]] for entry in entries}


def _pair(entry: dict[str, str]) -> Pair:
    quotes = [[line.strip() for line in entry[side].strip().splitlines()] for side in ("reference", "kernel")]
    return Pair(entry["does"], *quotes)


def find(of: str) -> tuple[list[Code], list[Code], list[Pair]]:
    """Both sides with their lines numbered, and the pairs. Raises LookupError for a quote that is gone."""
    pairs = table().get(of)
    if pairs is None:
        raise LookupError(f"{TABLE.name} has no pairs for it")
    file, _, names = of.partition(" ")
    left, _, right = names.partition("|")
    sides = _functions("reference", file, left.split()), _functions("kernels", file, right.split())
    for side, field in zip(sides, ("reference", "kernel"), strict=True):
        for number, pair in enumerate(pairs, 1):
            _mark(side, getattr(pair, field), number)
    return *sides, pairs


def _functions(folder: str, file: str, words: Sequence[str]) -> list[Code]:
    """The functions that these words name; a word that ends in .py is the file of those that follow."""
    found = []
    for word in words:
        if word.endswith(".py"):
            file = word
            continue
        code, first = sources.find(sources.ROOT / folder / file, word)
        lines = code.splitlines()
        found.append(Code(f"{folder}/{file}", word, first, lines, [0] * len(lines)))
    return found


def _mark(side: list[Code], quote: list[str], number: int) -> None:
    """Number the quoted lines: each is the first of its text after the one before that is not yet taken."""
    places = [(code, index) for code in side for index in range(len(code.lines))]
    for text in quote:
        at = next(
            (i for i, (c, k) in enumerate(places) if c.lines[k].strip() == text and not c.numbers[k]), None
        )
        if at is None:
            raise LookupError(f"{TABLE.name} quotes a line that is not there, or not in this order: {text}")
        code, index = places[at]
        code.numbers[index] = number
        places = places[at + 1 :]


def markdown(of: str, up: str) -> str:
    """Both sides as Markdown. `up` leads from the page to the root of the site."""
    reference, kernel, pairs = find(of)
    lengths = zip(*([_num_shown(side), _num_lines(side)] for side in (reference, kernel)), strict=True)
    below = any(longer > MUCH_LONGER * shorter for shorter, longer in lengths)
    opening = f'<div class="twins{" below" if below else ""}" markdown>'
    sides = [_side(codes, pairs, up) for codes in (reference, kernel)]
    return "\n\n".join([opening, f'<p class="twins-hint" data-hint="{HINT}">{HINT}</p>', *sides, "</div>"])


def shown(numbers: list[int]) -> list[bool]:
    """Which lines are shown while the rest is folded: those of pairs, and short stretches between them."""
    marked = [index for index, number in enumerate(numbers) if number]
    stops = [*marked, len(numbers)]
    near = {i for a, b in pairwise(stops) if b - a - 1 <= SHORT for i in range(a, b)}
    return [index in near or number > 0 for index, number in enumerate(numbers)]


def _num_shown(side: list[Code]) -> int:
    return sum(sum(shown(code.numbers)) for code in side)


def _num_lines(side: list[Code]) -> int:
    return sum(len(code.lines) for code in side)


def _side(side: list[Code], pairs: list[Pair], up: str) -> str:
    """The functions of one side, and the box that unfolds them."""
    folder = side[0].file.partition("/")[0]
    does = html.escape("|".join(pair.does for pair in pairs), quote=True)
    parts = [f'<div class="twin" data-side="{folder}" markdown>']
    for code in side:
        link = f"{up}source/{code.file.removesuffix('.py')}.md#L{code.first}"
        parts.append(
            f"**{FOLDERS[folder]}** `{code.name}` [{code.file}, line {code.first}]({link}){{ .source }}"
        )
        numbers = " ".join(map(str, code.numbers))
        parts.append(f'<div class="listing" data-does="{does}" data-pairs="{numbers}" markdown>')
        parts.append(sources.fenced("python", "\n".join(code.lines)) + "\n\n</div>")
    parts.append(
        f'<label class="twin-whole"><input type="checkbox"> Show all {_num_lines(side)} lines</label>'
    )
    return "\n\n".join([*parts, "</div>"])


def fold(page: str) -> str:
    """The HTML of a page with the lines of its twins marked: which belong to a pair, which are folded."""
    return LISTING.sub(_marked, page)


def _marked(listing: re.Match[str]) -> str:
    numbers = [int(number) for number in listing[2].split()]
    does = listing[1].split("|")
    visible = shown(numbers)

    def line(match: re.Match[str]) -> str:
        index = int(match[1]) - 1
        number = numbers[index]
        begins = index == 0 or numbers[index - 1] != number
        kind = f'class="line" data-pair="{number}"' if number else 'class="line"'
        gap = mark = ""
        if not visible[index]:
            kind = 'class="line folded"'
            if index == 0 or visible[index - 1]:
                gap = f'<span class="gap" data-lines="{_number_of_lines(visible[index:])}"></span>'
        if number and begins:
            words = f"{number}. {does[number - 1]}"
            mark = f'<button type="button" class="mark" data-mark="{number}" aria-label="{words}"></button>'
        return f"{gap}<span {kind} {match[2]}>{match[3] or ''}{mark}"

    code = LINE.sub(line, listing[0])
    return code.replace(f' data-does="{listing[1]}" data-pairs="{listing[2]}"', "", 1)


def _number_of_lines(visible: list[bool]) -> str:
    """How many folded lines come next, in words."""
    count = visible.index(True) if True in visible else len(visible)
    return f"{count} line{'' if count == 1 else 's'}"
