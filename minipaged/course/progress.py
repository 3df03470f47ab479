"""Which lessons are solved: kept beside them in .progress.json, with a digest of each file that passed."""

from __future__ import annotations

import json
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from .manifest import Course, Lesson

FILE = ".progress.json"


def solved(course: Course) -> set[str]:
    """Folders of the lessons whose exercise, as it is now, has passed."""
    known = _read(course.root)
    return {each.folder for each in course.lessons if known.get(each.folder, "") == digest(each)}


def note(course: Course, passed: list[Lesson], failed: list[Lesson]) -> None:
    """Remember how lessons went. A folder that can't be written to is no error."""
    known = _read(course.root)
    known |= {lesson.folder: digest(lesson) for lesson in passed}
    for lesson in failed:
        known.pop(lesson.folder, None)
    with suppress(OSError):
        (course.root / FILE).write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


def digest(lesson: Lesson) -> str:
    """A digest of the exercise as it is now."""
    try:
        return sha256(lesson.exercise_path.read_bytes()).hexdigest()
    except OSError:
        return "missing"


def _read(root: Path) -> dict[str, str]:
    try:
        known = json.loads((root / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
