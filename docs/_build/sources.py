"""Find a function, class, method or constant in a source file, and make a page of each file to link to."""

from __future__ import annotations

import ast
import re
from pathlib import Path

FOLDERS = ("reference", "kernels", "minipaged")
ROOT = Path(__file__).parents[2]


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
        node = next((each for each in body if part in _names(each)), None)
        if node is None:
            raise LookupError(f"{path.relative_to(ROOT)} has no {name}")
        body = getattr(node, "body", [])
    assert node is not None
    first = min([node.lineno, *(mark.lineno for mark in getattr(node, "decorator_list", []))])
    kept = lines[first - 1 : node.end_lineno]
    return "\n".join(line[node.col_offset :] for line in kept), first


def page(path: Path) -> str:
    """A page that shows a whole file, with an anchor for each line."""
    name = path.relative_to(ROOT).as_posix()
    text = path.read_text(encoding="utf-8").rstrip()
    fence = "`" * (1 + max([2, *map(len, re.findall("`+", text))]))
    return (
        f"---\nsearch:\n  exclude: true\nhide: [navigation, toc]\n---\n\n# {name}\n\n"
        f'{fence}python linenums="1"\n{text}\n{fence}\n'
    )


def _names(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {target.id for target in targets if isinstance(target, ast.Name)}
