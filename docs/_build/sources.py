"""Find a function, class, method or constant in a source file, and make a page of each file to link to."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from docstrings import as_code

FOLDERS = ("reference", "kernels", "minipaged", "minipaged/engine")
ROOT = Path(__file__).parents[2]
UNSEARCHED = "search:\n  exclude: true\n"  # pages that aren't the site's own


def find(path: Path, name: str) -> tuple[str, int]:
    """The source of `name` ("" for the whole file), and the line where it begins.

    A class is asked for as a whole, a method as Class.method. Raises LookupError where it is gone.
    """
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    if not name:
        return text.rstrip(), 1
    body: list[ast.stmt] = ast.parse(text).body
    node: ast.stmt | None = None
    for part in name.split("."):
        node = next((each for each in body if part in defined_names(each)), None)
        if node is None:
            raise LookupError(f"{path.relative_to(ROOT)} has no {name}")
        body = getattr(node, "body", [])
    assert node is not None
    first = first_line(node)
    kept = lines[first - 1 : node.end_lineno]
    return "\n".join(line[node.col_offset :] for line in kept), first


def page(path: Path) -> str:
    """A page that shows a whole file, with an anchor for each line."""
    name = path.relative_to(ROOT).as_posix()
    text = path.read_text(encoding="utf-8").rstrip()
    return (
        f"---\n{UNSEARCHED}hide: [navigation, toc]\n---\n\n# {name}\n\n"
        + fenced('python linenums="1"', text)
        + "\n"
    )


def prose(path: Path) -> str:
    """A page that is a Markdown file from elsewhere in the repository. Shapes are no links in it.

    A folded answer is Markdown too: GitHub reads it as such, and Python-Markdown only with the attribute.
    """
    text = path.read_text(encoding="utf-8").replace("<details>", '<details markdown="1">')
    return f"---\n{UNSEARCHED}---\n\n" + as_code(text)


def fenced(opening: str, text: str) -> str:
    """A code block whose fence is longer than any inside of it."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{opening}\n{text}\n{fence}"


def defined_names(node: ast.stmt) -> set[str]:
    """What a statement at the top of a module or class defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def first_line(node: ast.stmt) -> int:
    """Where a statement begins, its decorators included."""
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(mark.lineno for mark in decorators)])
