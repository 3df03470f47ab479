"""What the API pages change in docstrings: to Markdown, shapes like [num_blocks][head_dim] are links."""

from __future__ import annotations

import re
from typing import Any

import griffe

CODE = re.compile(r"(`[^`]*`)")
SHAPE = re.compile(r"(?:\[[^\[\]\n]*\]){2,}")


class Shapes(griffe.Extension):
    """Sets nested shapes as code, where they aren't yet."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every object that mkdocstrings has loaded."""
        if obj.docstring and not obj.is_alias:
            obj.docstring.value = as_code(obj.docstring.value)


def as_code(text: str) -> str:
    """`text` with every [..][..] that stands outside of code put into backticks."""
    parts = CODE.split(text)
    parts[::2] = [SHAPE.sub(lambda match: f"`{match[0]}`", part) for part in parts[::2]]
    return "".join(parts)
