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
    """Return the folders of the lessons whose exercise, as it is now, has passed."""
    digests = _read(course.root, "solved")
    return {lesson.folder for lesson in course.lessons if digests.get(lesson.folder) == digest(lesson)}


def note(course: Course, passed: list[Lesson], failed: list[Lesson]) -> None:
    """Remember which lessons passed and which failed."""
    digests = _read(course.root, "solved") | {lesson.folder: digest(lesson) for lesson in passed}
    for lesson in failed:
        digests.pop(lesson.folder, None)
    _write(course.root, "solved", digests)


def hints_seen(course: Course, lesson: Lesson) -> int:
    """Return how many hints of a lesson have been shown."""
    seen = _read(course.root, "hints").get(lesson.folder, 0)
    return max(seen, 0) if isinstance(seen, int) else 0


def note_hints(course: Course, lesson: Lesson, number: int) -> None:
    """Remember that `number` hints have been shown."""
    _write(course.root, "hints", _read(course.root, "hints") | {lesson.folder: number})


def digest(lesson: Lesson) -> str:
    """Return a digest of the exercise as it is now."""
    try:
        return sha256(lesson.exercise_path.read_bytes()).hexdigest()
    except OSError:
        return "missing"


def _read(root: Path, key: str) -> dict[str, Any]:
    """Return one part of the file; {} if the file or the part can't be read."""
    try:
        part = json.loads((root / FILE).read_text(encoding="utf-8"))[key]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return {}
    return part if isinstance(part, dict) else {}


def _write(root: Path, key: str, value: dict[str, Any]) -> None:
    """Change one part of the file. A folder that can't be written to is no error."""
    parts = {part: _read(root, part) for part in ("solved", "hints")} | {key: value}
    with suppress(OSError):
        (root / FILE).write_text(json.dumps(parts, indent=1) + "\n", encoding="utf-8")
