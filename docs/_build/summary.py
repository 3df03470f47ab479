"""One or two sentences that say what a page is about: its first prose."""

from __future__ import annotations

import re

LONGEST = 200  # characters; where links are shown, more is cut off
NOT_PROSE = re.compile(r"^(#|\||\{\{|```|~~~|<|!!!|- |\* |\d+\. |    |\*\[|\[[^\]]+\]: |\\\[)")
FENCED = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
MARKUP = (
    (re.compile(r"!?\[([^\]]*)\](\([^)]*\)|\[[^\]]*\])"), r"\1"),  # links
    (re.compile(r"\\\((.*?)\\\)"), r"\1"),  # formulas
    (re.compile(r"[*`]"), ""),
    (re.compile(r"\s+"), " "),
)


def summary(markdown: str) -> str:
    """Return the first sentences of a page's first paragraph of prose, or "" where it has none."""
    paragraphs = re.split(r"\n\s*\n", FENCED.sub("", markdown))
    text = next((each for each in paragraphs if each.strip() and not NOT_PROSE.match(each)), "")
    for pattern, plain in MARKUP:
        text = pattern.sub(plain, text)
    text = text.strip()
    if len(text) <= LONGEST:
        return text
    end = max(text.rfind(stop, 0, LONGEST) for stop in (". ", "? "))
    return text[: end + 1] if end > 0 else text[: text.rfind(" ", 0, LONGEST)] + " …"
