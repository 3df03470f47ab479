"""What the playground on Home is made of: recordings in the page, and the files that Python needs there."""

from __future__ import annotations

import html
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import playground

HERE = Path(__file__).parent
LOADED = "import sys, playground; print(*(name for name in sys.modules if name.startswith('minipaged.')))"
WITHOUT_SCRIPTS = "The playground needs JavaScript, which is off here. The text below explains its scenes."


def page() -> str:
    """The playground's place on a page. The recordings are in it: a page in a folder shows them too."""
    recordings = playground.recordings()
    for sign in "<>&'":  # JSON has another way to write them
        recordings = recordings.replace(sign, f"\\u{ord(sign):04x}")
    label = html.escape("Playground: the same requests in one piece and in blocks")
    return (
        f'<div class="playground" role="group" aria-label="{label}" data-recordings=\'{recordings}\'>'
        f"<noscript><p data-search-exclude>{WITHOUT_SCRIPTS}</p></noscript></div>"
    )


def sources() -> str:
    """The files that playground.py imports, and itself, by their paths: JSON. Cells have reference/."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED], cwd=HERE, capture_output=True, text=True, check=True
    )
    files = {"playground.py": (HERE / "playground.py").read_text()}
    for name in done.stdout.split():
        spec = find_spec(name)
        if name.startswith("minipaged.reference") or spec is None or spec.origin is None:
            continue
        file = f"{name.replace('.', '/')}{'/__init__' if spec.submodule_search_locations else ''}.py"
        files[file] = Path(spec.origin).read_text()
    return json.dumps(files)
