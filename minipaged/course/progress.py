"""Which lessons are solved: kept beside them in .progress.json, with a digest of each file that passed."""

from __future__ import annotations

import json
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from .manifest import Course, Lesson

FILE = ".progress.json"


def solved(course: Course) -> set[str]:
    """Folders of the lessons whose exercise, as it is now, has passed."""
    known = _read(course.root, "solved")
    return {each.folder for each in course.lessons if known.get(each.folder) == digest(each)}


def note(course: Course, passed: list[Lesson], failed: list[Lesson]) -> None:
    """Remember how lessons went."""
    known = _read(course.root, "solved") | {lesson.folder: digest(lesson) for lesson in passed}
    for lesson in failed:
        known.pop(lesson.folder, None)
    _write(course.root, "solved", known)


def hints_seen(course: Course, lesson: Lesson) -> int:
    """How many hints of a lesson have been shown."""
    seen = _read(course.root, "hints").get(lesson.folder, 0)
    return max(seen, 0) if isinstance(seen, int) else 0


def note_hints(course: Course, lesson: Lesson, number: int) -> None:
    """Remember that so many hints have been shown."""
    _write(course.root, "hints", _read(course.root, "hints") | {lesson.folder: number})


def digest(lesson: Lesson) -> str:
    """A digest of the exercise as it is now."""
    try:
        return sha256(lesson.exercise_path.read_bytes()).hexdigest()
    except OSError:
        return "missing"


def _read(root: Path, key: str) -> dict[str, Any]:
    """One part of the file; empty where there is none that can be read."""
    try:
        known = json.loads((root / FILE).read_text(encoding="utf-8"))[key]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return {}
    return known if isinstance(known, dict) else {}


def _write(root: Path, key: str, value: dict[str, Any]) -> None:
    """Change one part of the file. A folder that can't be written to is no error."""
    known = {each: _read(root, each) for each in ("solved", "hints")} | {key: value}
    with suppress(OSError):
        (root / FILE).write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
