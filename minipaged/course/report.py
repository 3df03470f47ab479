"""The report of `pytest lessons/`: a bar, what is next, one failure in plain words, and the way on."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from .exercise import unwritten
from .manifest import Course, Lesson
from .outcome import Failure, Outcome

Line = tuple[str, str]  # a style of pytest's terminal writer ("" for none), and the text


def report(course: Course, outcomes: list[Outcome], solved: set[str], new: list[Lesson]) -> Iterator[Line]:
    """All lines of the report. `solved` holds folders, `new` the lessons solved for the first time."""
    yield "", ""
    yield from progress_lines(course, solved, outcomes)
    for lesson in new:
        yield "", ""
        yield "green", f"Lesson {lesson.number}, {lesson.title}: solved."
        yield from _wrapped(lesson.learnt)
        yield from _wrapped(f"In vLLM: {lesson.vllm}")
        yield from _wrapped(f"Read on: {_page(lesson)}")
    failed = next((outcome for outcome in outcomes if outcome.failures), None)
    if failed is not None:
        yield "", ""
        yield from _failed(failed)
    elif len(solved) == len(course.lessons):
        yield "", ""
        yield (
            "green",
            "All lessons are solved: your block table, allocator and copies have served a real model.",
        )
    yield "", ""


def progress_lines(course: Course, solved: set[str], outcomes: Sequence[Outcome] = ()) -> Iterator[Line]:
    """The bar, and a line for each lesson."""
    lessons = course.lessons
    bar = "".join("■" if lesson.folder in solved else "□" for lesson in lessons)
    yield "bold", f"  {bar}  {len(solved)} of {len(lessons)} lessons solved"
    yield "", ""
    width = max(len(lesson.title) for lesson in lessons)
    by_folder = {outcome.lesson.folder: outcome for outcome in outcomes}
    first_open = next((lesson for lesson in lessons if lesson.folder not in solved), None)
    for lesson in lessons:
        outcome = by_folder.get(lesson.folder)
        done = lesson.folder in solved
        mark = "✓" if done else "✗" if outcome and outcome.failures and outcome.is_started else "·"
        text = f"  {mark} {lesson.number:2}  {lesson.title:{width}}  {_state(lesson, outcome, done)}"
        text = text.rstrip() + ("  ← next" if lesson is first_open else "")
        yield "green" if done else "red" if mark == "✗" else "", text


def _state(lesson: Lesson, outcome: Outcome | None, done: bool) -> str:
    if outcome is None or not outcome.num_checks:
        return "" if done else f"about {lesson.minutes} min, {lesson.runs_on}"
    if outcome.failures and not outcome.is_started:
        return "not started"
    return f"{outcome.num_passed} of {outcome.num_checks + outcome.num_skipped} checks pass"


def _failed(outcome: Outcome) -> Iterator[Line]:
    """The lesson to work on: where to read, what to write, and what is wrong."""
    lesson, failure = outcome.lesson, outcome.first_failure
    path = outcome.submission or lesson.exercise_path
    if not outcome.is_started:
        yield "bold", f"Next: lesson {lesson.number}, {lesson.title}. It is not started."
        yield from _wrapped(lesson.concept)
        yield "", f"    Read   {_relative(lesson.path / 'README.md')}"
        yield "", f"    Write  {_place(path, next(unwritten(path), ('', None))[1])}"
        if len(lesson.write) > 1:
            names = [name.removeprefix("_") for name in lesson.write]
            yield from _wrapped(f"To be written: {', '.join(names)}.")
    else:
        yield "bold", f"Lesson {lesson.number}, {lesson.title}"
        yield from _explained(failure, path)
    yield "", f"    Hint   minipaged lessons hint {lesson.number}"


def _explained(failure: Failure, path: Path) -> Iterator[Line]:
    if failure.is_unwritten:
        name = failure.function or "a function"
        yield "yellow", f"    {name} is not written yet."
        yield from _wrapped(f"It is needed here: {failure.rule}")
    else:
        yield from _wrapped(failure.rule, "red")
        for label, text in (("tried", failure.tried), ("expected", failure.expected), ("got", failure.got)):
            if text:
                yield from _labelled(label, text)
        if failure.why:
            yield from _labelled("why", failure.why)
    yield "", f"    Open   {_place(path, failure.line)}"


def _labelled(label: str, text: str) -> Iterator[Line]:
    """A label, and its text beside it; lines that the text brings stay as they are."""
    first, *rest = [
        line
        for part in text.splitlines() or [""]
        for line in (textwrap.wrap(part, _width() - 15) if len(part) > _width() - 15 else [part]) or [""]
    ]
    yield "", f"      {label:9}{first}"
    for line in rest:
        yield "", f"      {'':9}{line}"


def _wrapped(text: str, style: str = "") -> Iterator[Line]:
    for line in textwrap.wrap(" ".join(text.split()), _width() - 4):
        yield style, f"    {line}"


def _page(lesson: Lesson) -> str:
    """Where the lesson's page is: copies of the lessons are without it."""
    path = lesson.root.parent / lesson.page
    found = path.is_file()
    return _relative(path) if found else f"{lesson.page} in minipaged's repository; this copy has no docs"


def _width() -> int:
    return min(shutil.get_terminal_size((100, 24)).columns, 100)


def _place(path: Path, line: int | None) -> str:
    return _relative(path) + (f":{line}" if line else "")


def _relative(path: Path) -> str:
    """The path as one would type it here."""
    relative = os.path.relpath(path)
    return relative if not relative.startswith(os.path.join("..", "..")) else str(path)
