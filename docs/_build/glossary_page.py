"""The glossary page, made of the same file that gives the hover texts."""

from __future__ import annotations

import re
from pathlib import Path

LINE = re.compile(r"^\*\[(.+?)\]: (.+)$", re.MULTILINE)


def page(path: Path) -> str:
    """A definition list of all terms; the plural of a term is left out."""
    terms = dict(LINE.findall(path.read_text(encoding="utf-8")))
    singular = {
        name: text for name, text in terms.items() if name.removesuffix("s") not in terms or name[-1] != "s"
    }
    rows = "\n".join(
        f"| **{name}** | {text} |" for name, text in sorted(singular.items(), key=lambda t: t[0].lower())
    )
    about = "Point at a dotted word on any page, and its meaning appears."
    return f"# Glossary\n\n{about}\n\n| Term | Meaning |\n| --- | --- |\n{rows}\n"
