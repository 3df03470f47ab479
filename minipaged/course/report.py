"""The report of `pytest lessons/`: a bar, what is next, and one failure in plain words."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from .exercise import location, unwritten
from .manifest import Course, Lesson, Part
from .outcome import Failure, Outcome, Tally

Line = tuple[str, str]  # a style of pytest's terminal writer ("" for none), and the text


def report(course: Course, outcomes: list[Outcome], solved: set[str], new: list[Lesson]) -> Iterator[Line]:
    """Yield the lines of the report. `solved` holds folders, `new` the lessons to praise."""
    yield "", ""
    yield from progress_lines(course, solved, outcomes)
    for lesson in new:
        yield "", ""
        yield "green", f"Lesson {lesson.number}, {lesson.title}: solved."
        yield from _wrapped(lesson.learnt)
        yield from _wrapped(lesson.vllm)
        yield from _wrapped(f"Read on: {_page(lesson)}")
        yield from _wrapped(f"Yours beside the key: minipaged lessons diff {lesson.number}")
    for outcome in outcomes:
        for part in outcome.new_parts if outcome.lesson.folder not in solved else ():
            yield "", ""
            yield from _passed_part(outcome.lesson, part)
    failed = next((outcome for outcome in outcomes if outcome.failures), None)
    if failed is not None:
        yield "", ""
        yield from _failed(failed)
    elif len(solved) == len(course.lessons):
        yield "", ""
        served = "your block table, allocator and copies have served a real model"
        yield "green", f"All lessons are solved: {served}."
    yield "", ""


def points(outcomes: list[Outcome]) -> list[dict[str, Any]]:
    """Return the points of each lesson and check, as --json writes them."""
    return [
        {
            "lesson": outcome.lesson.folder,
            "title": outcome.lesson.title,
            "solved": outcome.is_solved,
            **_points(outcome.total),
            "parts": [
                {"title": part.title, **_points(outcome.of(part.tests))} for part in outcome.lesson.parts
            ],
            "checks": outcome.total.checks,
        }
        for outcome in outcomes
    ]


def _points(tally: Tally) -> dict[str, int]:
    return {"points": tally.num_passed, "of": tally.num_all}


def progress_lines(
    course: Course, solved: set[str], outcomes: Sequence[Outcome] = (), passed_parts: Collection[str] = ()
) -> Iterator[Line]:
    """Yield the bar, a line per lesson, and a line per part of a lesson that is begun."""
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
        yield _color(mark), text
        graded = outcome if outcome and outcome.num_checks and outcome.is_started else None
        if graded or (not done and any(lesson.id_of(part) in passed_parts for part in lesson.parts)):
            yield from _part_lines(lesson, graded, passed_parts, width)


def _part_lines(
    lesson: Lesson, graded: Outcome | None, passed_parts: Collection[str], width: int
) -> Iterator[Line]:
    """Yield a line per part: its checks if the lesson was graded, or else whether it has passed before."""
    for part in lesson.parts:
        tally = graded.of(part.tests) if graded else Tally()
        passes = graded.passes(part) if graded else lesson.id_of(part) in passed_parts
        mark = "✓" if passes else "✗" if tally.failures else "·"
        otherwise = "not graded" if graded else "passed" if passes else ""
        state = _checks(tally) if tally.num_checks else otherwise
        yield _color(mark), f"        {mark} {part.title:{width - 2}}  {state}".rstrip()


def _color(mark: str) -> str:
    return {"✓": "green", "✗": "red"}.get(mark, "")


def _state(lesson: Lesson, outcome: Outcome | None, done: bool) -> str:
    if outcome is None or not outcome.num_checks:
        return "" if done else f"about {lesson.minutes} min, {lesson.runs_on}"
    if outcome.failures and not outcome.is_started:
        return "not started"
    return _checks(outcome.total)


def _checks(tally: Tally) -> str:
    return f"{tally.num_passed} of {tally.num_all} checks pass"


def _passed_part(lesson: Lesson, part: Part) -> Iterator[Line]:
    """Yield what to say if a part of a lesson passes for the first time, and the lesson is not solved."""
    number = lesson.part_number(part.tests)
    yield "green", f"Lesson {lesson.number}, part {number}, {part.title}: passes."
    if number < len(lesson.parts):
        following = lesson.parts[number]
        yield from _wrapped(f"Next: part {number + 1}, {following.title}. {_to_write(following.write)}")
    else:
        yield from _wrapped(f"To grade all parts together: pytest {location(lesson.path)}")


def _to_write(names: list[str]) -> str:
    return f"To be written: {', '.join(name.removeprefix('_') for name in names)}."


def _failed(outcome: Outcome) -> Iterator[Line]:
    """Yield the lesson to work on: where to read, what to write, and what is wrong."""
    lesson, failure = outcome.lesson, outcome.first_failure
    path = outcome.submission or lesson.exercise_path
    if not outcome.is_started:
        yield "bold", f"Next: lesson {lesson.number}, {lesson.title}. It is not started."
        yield from _wrapped(lesson.concept)
        yield "", f"    Read   {location(lesson.path / 'README.md')}"
        yield "", f"    Write  {location(path, next(unwritten(path), ('', None))[1])}"
        if lesson.parts:
            yield from _wrapped(f"Part 1 of {len(lesson.parts)}: {lesson.parts[0].title}.")
        if len(names := lesson.parts[0].write if lesson.parts else lesson.write) > 1:
            yield from _wrapped(_to_write(names))
    else:
        part = outcome.failed_part
        of_part = f", part {lesson.part_number(part.tests)}, {part.title}" if part else ""
        yield "bold", f"Lesson {lesson.number}, {lesson.title}{of_part}"
        yield from _explained(failure, path)
    yield "", f"    Hint   minipaged lessons hint {lesson.number}"


def _explained(failure: Failure, path: Path) -> Iterator[Line]:
    if failure.is_unwritten:
        name = failure.function or "a function"
        yield "yellow", f"    {name} is not written yet."
        yield from _wrapped(f"It is needed here: {failure.rule}")
    else:
        yield from _wrapped(failure.rule, "red")
        for label in ("tried", "expected", "got", "why"):
            if text := getattr(failure, label):
                yield from _labelled(label, text)
    yield "", f"    Open   {location(path, failure.line)}"


def _labelled(label: str, text: str) -> Iterator[Line]:
    """Yield a text with a label before its first line; shorter lines of the text stay as they are."""
    width = _width() - 15
    for part in text.splitlines():
        for line in (textwrap.wrap(part, width) if len(part) > width else [part]) or [""]:
            yield "", f"      {label:9}{line}"
            label = ""


def _wrapped(text: str, style: str = "") -> Iterator[Line]:
    for line in textwrap.wrap(" ".join(text.split()), _width() - 4):
        yield style, f"    {line}"


def _page(lesson: Lesson) -> str:
    """Say where the lesson's page is: a copy of the lessons is without it."""
    path = lesson.root.parent / lesson.page
    in_repository = f"{lesson.page} in minipaged's repository; this copy has no docs"
    return os.path.relpath(path) if path.is_file() else in_repository


def _width() -> int:
    return min(shutil.get_terminal_size((100, 24)).columns, 100)
