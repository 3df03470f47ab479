"""What the API pages change in docstrings.

To Markdown, shapes like [num_blocks][head_dim] are links. To mkdocstrings, a line explains one argument; ours
may explain two: "keys, values: ...".
"""

from __future__ import annotations

import re
from typing import Any

import griffe

CODE = re.compile(r"(`[^`]*`)")
TWO = re.compile(r"^( *)(\w+), (\w+): (.*(?:\n\1 +\S.*)*)", re.MULTILINE)
SHAPE = re.compile(r"(?:\[[^\[\]\n]*\]){2,}")


class Docstrings(griffe.Extension):
    """Sets nested shapes as code, where they aren't yet, and gives each argument a line of its own."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every object that mkdocstrings has loaded."""
        if obj.docstring and not obj.is_alias:
            obj.docstring.value = apart(as_code(obj.docstring.value))


def as_code(text: str) -> str:
    """`text` with every [..][..] that stands outside of code put into backticks."""
    parts = CODE.split(text)
    parts[::2] = [SHAPE.sub(lambda match: f"`{match[0]}`", part) for part in parts[::2]]
    return "".join(parts)


def apart(text: str) -> str:
    """`text` with every line of its arguments that explains two of them parted in two."""
    before, heading, arguments = text.partition("Args:\n")
    return before + heading + TWO.sub(r"\1\2: \4\n\1\3: As `\2`.", arguments)
