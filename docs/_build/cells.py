"""A cell of a page as HTML: an editor with numbered lines, its buttons, and what it printed in the build.

docs/assets/cells.js runs it in the browser.
"""

from __future__ import annotations

import html

import outputs

WITHOUT_SCRIPT = (
    '<noscript><span class="cell-note" data-search-exclude>'
    "A cell runs with JavaScript, which is off here. The output is from the build of the site."
    "</span></noscript>"
)


def cell(code: str) -> str:
    """A cell that runs in the browser, in one line: a blank one would end the HTML, as Markdown has it."""
    code = code.rstrip()
    printed, error, wrong = outputs.of_cell(code)
    rows = code.count("\n") + 1
    kinds = {wrong: ' class="cell-wrong"'}
    numbers = "".join(f"<span{kinds.get(row, '')}>{row}</span>" for row in range(1, rows + 1))
    red = f'<span class="cell-error">{literal(error)}</span>' if error else ""
    return (
        '<div class="cell"><div class="cell-editor">'
        f'<div class="cell-lines" aria-hidden="true">{numbers}</div>'
        f'<textarea class="cell-code" spellcheck="false" autocapitalize="off" '
        f'autocomplete="off" rows="{rows}" aria-label="Python code. '
        f'Control and Enter run it; Escape, then Tab leaves it.">'
        f"{literal(code)}</textarea></div>"
        f'<div class="cell-buttons">{WITHOUT_SCRIPT}<button type="button" class="cell-run">Run</button>'
        f'<button type="button" class="cell-reset">Reset</button>'
        f'<span class="cell-note" role="status"></span>'
        f'<span class="cell-hint" aria-hidden="true">Ctrl+Enter runs · Esc, then Tab leaves</span></div>'
        f'<pre class="cell-output" role="log" tabindex="0" aria-label="Output">'
        f"{literal(printed)}{red}</pre></div>"
    )


def literal(text: str) -> str:
    """Text inside of HTML that Markdown leaves as it is, over lines that may be empty."""
    return (
        html.escape(text)
        .replace("\n", "&#10;")
        .replace("*", "&#42;")
        .replace("_", "&#95;")
        .replace("`", "&#96;")
    )
