"""Formulas are drawn by the build: a reader's browser gets KaTeX's HTML and style, and not its script."""

from __future__ import annotations

import json
import re
import subprocess
from html import unescape
from pathlib import Path

from mkdocs.exceptions import PluginError

SCRIPT = Path(__file__).with_suffix(".js")
FORMULA = re.compile(r'(<(span|div) class="arithmatex">)(.*?)(?=</\2>)', re.DOTALL)


def drawn(html: str) -> str:
    """Return a page's HTML with its formulas drawn."""
    formulas = [unescape(match[3]).strip() for match in FORMULA.finditer(html)]
    if not formulas:
        return html
    asked = [[each[2:-2], each.startswith(r"\[")] for each in formulas]  # without \( and \), or \[ and \]
    done = subprocess.run(
        ["node", SCRIPT], input=json.dumps(asked), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise PluginError(f"KaTeX can't draw a formula: {done.stderr}")
    made = iter(json.loads(done.stdout))
    return FORMULA.sub(lambda match: match[1] + next(made), html)
