"""Which lessons are solved: kept beside them in .progress.json, with a digest of each file that passed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from .exercise import is_untouched
from .manifest import PROGRESS, Course, Lesson, Part
from .outcome import Outcome


def solved(course: Course) -> set[str]:
    """Return the folders of the lessons whose exercise, as it is now, has passed."""
    digests = _read(course.root, "solved")
    return {lesson.folder for lesson in course.lessons if digests.get(lesson.folder) == digest(lesson)}


def note(course: Course, passed: list[Lesson], failed: list[Lesson]) -> None:
    """Remember which lessons passed and which failed."""
    digests = _read(course.root, "solved") | {lesson.folder: digest(lesson) for lesson in passed}
    for lesson in failed:
        digests.pop(lesson.folder, None)
    _write(course.root, "solved", digests)


def passed_parts(course: Course) -> set[str]:
    """Return the ids of the parts that passed when they were graded last, of exercises that are begun."""
    passed = _read(course.root, "parts")
    lessons = [lesson for lesson in course.lessons if not is_untouched(lesson, lesson.exercise_path)]
    return {lesson.id_of(part) for lesson in lessons for part in lesson.parts} & passed.keys()


def open_part(course: Course, lesson: Lesson) -> Part | None:
    """Return the first part of a lesson that has not passed, or else its last; None if it has no parts."""
    passed = passed_parts(course)
    not_passed = [part for part in lesson.parts if lesson.id_of(part) not in passed]
    return next(iter(not_passed or lesson.parts[-1:]), None)


def note_parts(course: Course, outcomes: Iterable[Outcome]) -> None:
    """Remember which parts passed and which failed, and tell each outcome which of its parts are new."""
    passed = _read(course.root, "parts")
    for outcome in outcomes:
        for part in outcome.lesson.parts:
            name = outcome.lesson.id_of(part)
            if outcome.passes(part):
                outcome.new_parts += [part] if name not in passed else []
                passed[name] = True
            elif outcome.of(part.tests).failures:
                passed.pop(name, None)
    _write(course.root, "parts", passed)


def hints_seen(course: Course, name: str) -> int:
    """Return how many hints of a lesson, or of a part of one, have been shown."""
    seen = _read(course.root, "hints").get(name, 0)
    return max(seen, 0) if isinstance(seen, int) else 0


def note_hints(course: Course, name: str, number: int) -> None:
    """Remember that `number` hints have been shown."""
    _write(course.root, "hints", _read(course.root, "hints") | {name: number})


def digest(lesson: Lesson) -> str:
    """Return a digest of the exercise as it is now."""
    try:
        return sha256(lesson.exercise_path.read_bytes()).hexdigest()
    except OSError:
        return "missing"


def _read(root: Path, key: str) -> dict[str, Any]:
    """Return one part of the file; {} if the file or the part can't be read."""
    try:
        part = json.loads((root / PROGRESS).read_text(encoding="utf-8"))[key]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return {}
    return part if isinstance(part, dict) else {}


def _write(root: Path, key: str, value: dict[str, Any]) -> None:
    """Change one part of the file. A folder that can't be written to is no error."""
    parts = {part: _read(root, part) for part in ("solved", "parts", "hints")} | {key: value}
    with suppress(OSError):
        (root / PROGRESS).write_text(json.dumps(parts, indent=1) + "\n", encoding="utf-8")
