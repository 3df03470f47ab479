"""Write a page for the browser that replays a trace and needs no other file."""

from __future__ import annotations

import re
from pathlib import Path

VIEW = Path(__file__).parent
# In the order in which a page needs them.
SCRIPTS = ("replay.js", "strips.js", "arrows.js", "tour.js", "frame.js", "block_view.js", "scenes.js")


def write_page(trace: str, path: Path, title: str) -> None:
    """Write a page that replays `trace`, JSON Lines, and needs no other file and no network."""
    page = (VIEW / "page.html").read_text(encoding="utf-8")
    parts = {
        "TITLE": title.replace("&", "&amp;").replace("<", "&lt;"),
        "STYLE": (VIEW / "block_view.css").read_text(encoding="utf-8"),
        "SCRIPT": "".join((VIEW / name).read_text(encoding="utf-8") for name in SCRIPTS),
        "TRACE": trace.replace("<", "\\u003c"),  # a prompt must not end the script that holds the trace
    }
    # One pass, so that a title that looks like a placeholder stays as it is.
    page = re.sub(r"\{\{(\w+)\}\}", lambda placeholder: parts[placeholder[1]], page)
    path.write_text(page, encoding="utf-8")
