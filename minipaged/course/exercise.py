"""Exercises are made from their answer keys, so that the two can't drift apart.

`exercise_source` takes the module that answers a lesson, keeps signatures and docstrings of what is to be
written and empties the bodies. The exercise in the repository is exactly that; `reset` makes it again.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import textwrap
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import ModuleType

from .manifest import Lesson

WIDTH = 110
_HEADER = '''"""{number}. {title}: {concept}

README.md explains it. Write each body that raises NotImplementedError; the rest is given.
Grade it: pytest lessons/{folder}    A hint: minipaged lessons hint {number}
"""
'''
Definition = ast.FunctionDef | ast.ClassDef
_numbers = count()


def exercise_source(lesson: Lesson) -> str:
    """The text of the lesson's exercise.py before anything is written in it."""
    spec = importlib.util.find_spec(lesson.key)
    assert spec is not None and spec.origin is not None
    key = _Key(lesson, Path(spec.origin).read_text(encoding="utf-8"))
    header = _HEADER.format(number=lesson.number, **vars(lesson))
    gap = "\n\n" if isinstance(key.kept[0], Definition) else "\n"
    return f"{header}\n{key.imports()}{gap}{key.definitions()}"


def is_untouched(lesson: Lesson, path: Path) -> bool:
    """Whether nothing but comments and layout has been changed in the exercise."""
    try:
        written = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return False
    return ast.dump(written) == ast.dump(ast.parse(exercise_source(lesson)))


def unwritten(path: Path) -> Iterator[tuple[str, int]]:
    """The stubs of a file; none where it can't be read."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return
    yield from stubs(tree)


def stubs(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Names and lines of the functions that still raise NotImplementedError and nothing else."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    for node in sorted(functions, key=lambda node: node.lineno):
        if ast.unparse(node.body[-1]) == "raise NotImplementedError":
            yield node.name, node.body[-1].lineno


def load_exercise(path: Path) -> ModuleType:
    """Import the file at `path` anew, under a name of its own."""
    name = f"minipaged_exercise_{next(_numbers)}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and Triton look themselves up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


class _Key:
    """The source of an answer key, and what of it goes into the exercise."""

    def __init__(self, lesson: Lesson, source: str) -> None:
        self.lesson = lesson
        self.lines = source.splitlines()
        self.tree = ast.parse(source)
        tops = {name.partition(".")[0] for name in lesson.write + lesson.given}
        self.kept = [node for node in self.tree.body if defined_names(node) & tops]
        missing = tops - {name for node in self.kept for name in defined_names(node)}
        if missing:
            raise ValueError(f"lesson {lesson.folder}: {lesson.key} has no {', '.join(sorted(missing))}")

    def imports(self) -> str:
        """The key's own imports as far as they are used, and from the key itself what was left out."""
        used = {n.id for top in self.kept for n in self._nodes(top) if isinstance(n, ast.Name)}
        wanted = used | set(self.lesson.also_import)
        package = self.lesson.key.rpartition(".")[0]
        lines = []
        for node in self.tree.body:
            if isinstance(node, ast.ImportFrom | ast.Import):
                names = [a for a in node.names if (a.asname or a.name) in wanted or a.name == "annotations"]
                if names:
                    lines.append(_absolute(node, names, package))
        left_out = {name for node in self.tree.body if _is_definition(node) for name in defined_names(node)}
        kept = {name for node in self.kept for name in defined_names(node)}
        left_out = left_out & used - kept - set(self.lesson.leave_out)
        if left_out:
            constants_first = sorted(left_out, key=lambda name: (not name.isupper(), name.islower(), name))
            lines.append(f"from {self.lesson.key} import {', '.join(constants_first)}")
        future = [f"{line}\n" for line in lines if "__future__" in line]
        rest = [line for line in lines if "__future__" not in line]
        standard = [line for line in rest if line.split()[1].partition(".")[0] in sys.stdlib_module_names]
        others = [line for line in rest if "minipaged" not in line and line not in standard]
        ours = sorted(line for line in rest if "minipaged" in line)
        groups = ["\n".join(group) for group in (standard, others, ours) if group]
        return "\n".join(future) + "\n" + "\n\n".join(groups) + "\n"

    def _nodes(self, top: ast.stmt) -> Iterator[ast.AST]:
        """All nodes of a kept statement, but for the members that are left out."""
        for node in ast.iter_child_nodes(top):
            if f"{getattr(top, 'name', '')}.{getattr(node, 'name', '')}" not in self.lesson.leave_out:
                yield from ast.walk(node)

    def definitions(self) -> str:
        """The kept classes, functions and constants, emptied where the learner is to write."""
        parts: list[str] = []
        for node in self.kept:
            alone = (
                not isinstance(node, Definition) and parts and not parts[-1].startswith(("def", "class", "@"))
            )
            parts.append(("\n" if alone else "\n\n\n") if parts else "")
            parts.append("\n".join(self._text(node, "")))
        return "".join(parts) + "\n"

    def _text(self, node: ast.stmt, prefix: str) -> list[str]:
        """The lines of a statement as they stand in the exercise."""
        name = prefix + getattr(node, "name", "")
        first = first_line(node)
        if not isinstance(node, Definition):
            return self._comment_above(node) + self.lines[first - 1 : node.end_lineno]
        if isinstance(node, ast.FunctionDef) and name in self.lesson.write:
            return self._emptied(node, name)
        start = node.body[0]
        lines = self.lines[first - 1 : first_line(start) - 1]
        body = node.body
        if ast.get_docstring(node):
            lines += self._docstring(node, [])
            start, body = body[0], body[1:]
            after = (start.end_lineno or 0) + 1
        else:
            after = first_line(start)
        if isinstance(node, ast.FunctionDef):
            return self._comment_above(node) + lines + self.lines[after - 1 : node.end_lineno]
        for member in body:
            if f"{name}.{getattr(member, 'name', '')}" not in self.lesson.leave_out:
                lines += self._gap(member) + self._text(member, f"{name}.")
        return self._comment_above(node) + lines

    def _gap(self, member: ast.stmt) -> list[str]:
        """The blank line before a method; none between one-line statements that had none."""
        above = self.lines[first_line(member) - 2]
        return [] if above.strip() and not above.strip().startswith("#") else [""]

    def _comment_above(self, node: ast.stmt) -> list[str]:
        first = last = first_line(node) - 1
        while first and self.lines[first - 1].lstrip().startswith("#"):
            first -= 1
        return self.lines[first:last]

    def _emptied(self, node: ast.FunctionDef, name: str) -> list[str]:
        indent = " " * node.col_offset
        dropped = self.lesson.drop_parameters.get(name, [])
        head = self.lines[first_line(node) - 1 : first_line(node.body[0]) - 1]
        if dropped:
            head = _without_parameters(node, dropped, indent)
        return [*head, *self._docstring(node, dropped), f"{indent}    raise NotImplementedError"]

    def _docstring(self, node: ast.FunctionDef | ast.ClassDef, dropped: list[str]) -> list[str]:
        """The lines of a docstring, without the sentences that speak of what was dropped."""
        docstring = ast.get_docstring(node)
        if docstring is None:
            return []
        first = node.body[0]
        words = [*dropped, *self.lesson.drop_words]
        if not words or not _speaks_of(words).search(docstring) or not _kept_sentences(docstring, words):
            return self.lines[first.lineno - 1 : first.end_lineno]
        return _without_sentences(docstring, words, " " * first.col_offset)


def defined_names(node: ast.stmt) -> set[str]:
    """What a statement at the top of a module defines."""
    if isinstance(node, Definition):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {t.id for t in targets if isinstance(t, ast.Name)}


def _is_definition(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign)


def first_line(node: ast.stmt) -> int:
    """Where a statement begins, its decorators included."""
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(mark.lineno for mark in decorators)])


def _absolute(node: ast.Import | ast.ImportFrom, names: list[ast.alias], package: str) -> str:
    """An import that works from outside the package."""
    if isinstance(node, ast.Import):
        return ast.unparse(ast.Import(names))
    parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
    module = ".".join([*parents, *([node.module] if node.module else [])])
    return ast.unparse(ast.ImportFrom(module, names, 0))


def _without_parameters(node: ast.FunctionDef, dropped: list[str], indent: str) -> list[str]:
    arguments = node.args
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    kept = [(argument, default) for argument, default in pairs if argument.arg not in dropped]
    fewer = ast.arguments(
        posonlyargs=arguments.posonlyargs,
        args=arguments.args,
        vararg=arguments.vararg,
        kwonlyargs=[argument for argument, _ in kept],
        kw_defaults=[default for _, default in kept],
        kwarg=arguments.kwarg,
        defaults=arguments.defaults,
    )
    text = ast.unparse(fewer)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    line = f"{indent}def {node.name}({text}){returns}:"
    if len(line) <= WIDTH:
        return [line]
    if len(f"{indent}    {text}") <= WIDTH and not kept:
        return [f"{indent}def {node.name}(", f"{indent}    {text}", f"{indent}){returns}:"]
    each = re.split(r", (?![^\[]*\])", text)
    return [f"{indent}def {node.name}(", *(f"{indent}    {part}," for part in each), f"{indent}){returns}:"]


def _speaks_of(words: list[str]) -> re.Pattern[str]:
    return re.compile(r"\b(" + "|".join(words) + r")\b")


def _kept_sentences(docstring: str, dropped: list[str]) -> list[str]:
    """The paragraphs of a docstring without the sentences that speak of what was dropped."""
    paragraphs = []
    for paragraph in docstring.split("\n\n"):
        sentences = re.split(r"(?<=\.) +(?=[A-Z`])", " ".join(paragraph.split()))
        kept = " ".join(sentence for sentence in sentences if not _speaks_of(dropped).search(sentence))
        if kept:
            paragraphs.append(kept)
    return paragraphs


def _without_sentences(docstring: str, dropped: list[str], indent: str) -> list[str]:
    """The lines of what is kept of a docstring, wrapped anew."""
    paragraphs = _kept_sentences(docstring, dropped)
    paragraphs[0] = f'"""{paragraphs[0]}'
    if len(paragraphs) == 1 and len(indent + paragraphs[0]) + 3 <= WIDTH:
        return [f'{indent}{paragraphs[0]}"""']
    lines: list[str] = []
    for paragraph in paragraphs:
        lines += ["", *textwrap.wrap(paragraph, WIDTH, initial_indent=indent, subsequent_indent=indent)]
    return [*lines[1:], f'{indent}"""']
