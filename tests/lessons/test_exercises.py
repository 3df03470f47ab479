"""Each exercise is a part of its answer key, whose bodies are taken out where they are to be written."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator

import pytest
from solutions import COURSE, key_text

from minipaged.course.exercise import starting_text
from minipaged.course.manifest import Lesson

Tree = ast.Module | ast.ClassDef
each_lesson = pytest.mark.parametrize("lesson", COURSE.lessons, ids=lambda lesson: lesson.folder)

# What plays no part in a lesson: methods, helpers and parameters of its key, and sentences with such a word.
LEFT_OUT = {
    3: {"BlockAllocator.retain", "BlockAllocator.release", "BlockAllocator.can_reuse"}
    | {"BlockAllocator.num_cached", "cached", "retained"},
    4: {"_bent", "_check_options", "window", "softcap"},
    7: {"PrefixChain.fork"},
    8: {"_move"},
    9: {"_held_back", "Scheduler.start_over", "start_over"},
    13: {"BlockManager.admit", "BlockManager.reorder", "BlockManager.swap_out", "BlockManager.swap_in"}
    | {"BlockManager._lookup", "BlockManager._plan", "BlockManager._num_common_blocks"}
    | {"BlockManager.check", "BlockManager.reset"},
}


@each_lesson
def test_an_exercise_is_committed_as_it_is_at_the_start(lesson: Lesson) -> None:
    told = f"run: minipaged lessons reset {lesson.number}"
    assert lesson.exercise_path.read_text() == starting_text(lesson), told


@each_lesson
def test_an_exercise_begins_with_what_the_manifest_says(lesson: Lesson) -> None:
    docstring = ast.get_docstring(exercise_tree(lesson))
    assert docstring == (
        f"{lesson.number}. {lesson.title}: {lesson.concept}\n\n"
        "README.md explains it. Write each body that raises NotImplementedError; the rest is given.\n"
        f"Grade it: pytest lessons/{lesson.folder}    A hint: minipaged lessons hint {lesson.number}"
    )


@each_lesson
def test_the_bodies_to_be_written_are_those_of_the_manifest_and_are_empty(lesson: Lesson) -> None:
    written = {name: node for name, node in definitions(exercise_tree(lesson)) if is_stub(node)}
    assert set(written) == set(lesson.write)
    for node in written.values():
        assert len(node.body) == 2 and ast.get_docstring(node)


@each_lesson
def test_signatures_and_docstrings_agree_with_the_key(lesson: Lesson) -> None:
    keys = dict(definitions(key_tree(lesson)))
    for name, node in definitions(exercise_tree(lesson)):
        assert name in keys
        assert signature(node, lesson) == signature(keys[name], lesson), name
        assert sentences(node) == taught(sentences(keys[name]), lesson), name


@each_lesson
def test_what_is_given_is_the_key_itself(lesson: Lesson) -> None:
    """Constants and whole functions; of a class all members but those that are left out."""
    exercise, key = exercise_tree(lesson), key_tree(lesson)
    keys = dict(definitions(key))
    for name, node in definitions(exercise):
        other = keys[name]
        if isinstance(node, ast.ClassDef) and isinstance(other, ast.ClassDef):
            members = {name for name, _ in definitions(other, f"{name}.")} - LEFT_OUT.get(
                lesson.number, set()
            )
            assert {name for name, _ in definitions(node, f"{name}.")} == members
            assert plain_members(node) == plain_members(other)
        elif not is_stub(node):
            assert code(node) == code(other), name
    assert constants(exercise).items() <= constants(key).items()


@each_lesson
def test_every_name_that_the_key_uses_is_there(lesson: Lesson) -> None:
    """What its written bodies take from their module: imported, or given."""
    exercise, key = exercise_tree(lesson), key_tree(lesson)
    bodies = [node for name, node in definitions(key) if name in lesson.write]
    parts = [part for node in bodies for part in node.body]
    used = {each.id for part in parts for each in ast.walk(part) if isinstance(each, ast.Name)}
    missing = used & module_names(key) - module_names(exercise) - LEFT_OUT.get(lesson.number, set())
    assert not missing - set(dir(builtins))


def exercise_tree(lesson: Lesson) -> ast.Module:
    return ast.parse(starting_text(lesson))


def key_tree(lesson: Lesson) -> ast.Module:
    return ast.parse(key_text(lesson))


def definitions(tree: Tree, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.ClassDef]]:
    """Functions, classes and methods with their dotted names."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield prefix + node.name, node
        if isinstance(node, ast.ClassDef):
            yield from definitions(node, f"{prefix}{node.name}.")


def is_stub(node: ast.FunctionDef | ast.ClassDef) -> bool:
    return ast.unparse(node.body[-1]) == "raise NotImplementedError"


def signature(node: ast.FunctionDef | ast.ClassDef, lesson: Lesson) -> list[str]:
    """What begins it, without the parameters that are left out, and without what decorators are given.

    How a kernel is specialised makes no difference to what it computes.
    """
    names = [each.func if isinstance(each, ast.Call) else each for each in node.decorator_list]
    decorators = [ast.unparse(name) for name in names]
    if isinstance(node, ast.ClassDef):
        return [*decorators, *map(ast.unparse, node.bases)]
    arguments, left_out = node.args, LEFT_OUT.get(lesson.number, set())
    pairs = list(zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True))
    kept = [pair for pair in pairs if pair[0].arg not in left_out]
    arguments.kwonlyargs, arguments.kw_defaults = [pair[0] for pair in kept], [pair[1] for pair in kept]
    return [*decorators, ast.unparse(arguments), ast.unparse(node.returns) if node.returns else ""]


def sentences(node: ast.FunctionDef | ast.ClassDef) -> list[str]:
    """The sentences of a docstring."""
    paragraphs = (ast.get_docstring(node) or "").split("\n\n")
    return [
        sentence
        for paragraph in paragraphs
        for sentence in re.split(r"(?<=\.) +(?=[A-Z`])", " ".join(paragraph.split()))
    ]


def taught(docstring: list[str], lesson: Lesson) -> list[str]:
    """The sentences that speak of nothing that is left out."""
    words = "|".join(map(re.escape, LEFT_OUT.get(lesson.number, {"nothing left out"})))
    return [sentence for sentence in docstring if not re.search(rf"\b({words})\b", sentence)]


def code(node: ast.FunctionDef | ast.ClassDef) -> str:
    """The statements of a body, without its docstring."""
    return ast.unparse(node.body[1:] if ast.get_docstring(node) else node.body)  # type: ignore[arg-type]


def plain_members(node: ast.ClassDef) -> list[str]:
    """The attributes of a class that are no methods."""
    return [ast.unparse(each) for each in node.body if isinstance(each, ast.Assign | ast.AnnAssign)]


def constants(tree: ast.Module) -> dict[str, str]:
    """The values at the top of a module by their names."""
    return {
        name: ast.unparse(node)
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for name in module_names(ast.Module([node], []))
    }


def module_names(tree: ast.Module) -> set[str]:
    """Names that a module has: defined, or imported."""
    names = {name for name, _ in definitions(tree) if "." not in name}
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names
