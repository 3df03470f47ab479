"""`minipaged lessons`: progress, hints, answer keys, a fresh start, grading on every save, your own copy."""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.padding import Padding

from ..errors import InvalidRequestError
from ..terminal.console import DataConsole
from . import progress
from .exercise import is_untouched, starting_text
from .manifest import Course, find_course, holds_a_course, is_own_copy
from .report import progress_lines

COPY_FIRST = "make a copy of your own: minipaged lessons copy my-lessons"
LESSON = typer.Argument(help="such as 3 or allocator")
console = DataConsole()
lessons = typer.Typer(add_completion=False, rich_markup_mode=None, invoke_without_command=True)


@lessons.callback()
def progress_unless_more(context: typer.Context) -> None:
    """Show the progress if no subcommand is named."""
    if context.invoked_subcommand is None:
        show_progress(find_course())


def show_progress(course: Course) -> None:
    """Print the bar, all lessons, and what to read, write and type next."""
    solved = progress.solved(course)
    console.print()
    for style, text in progress_lines(course, solved, passed_parts=progress.passed_parts(course)):
        console.write((text, style))
    following = next((lesson for lesson in course.lessons if lesson.folder not in solved), None)
    console.print()
    if not is_own_copy(course):
        console.write(f"  To begin, {COPY_FIRST}")
    elif following is not None:
        console.write(f"  Read   {following.path / 'README.md'}")
        console.write(f"  Write  {following.exercise_path}")
        console.write(f"  Grade  pytest {shlex.quote(str(course.root))}")


@lessons.command("hint")
def show_hint(lesson: Annotated[str, LESSON]) -> None:
    """Show the next hint of a lesson, or of its first part that has not passed, after those shown before."""
    course = find_course()
    named = course.find(lesson)
    part = progress.open_part(course, named)
    hinted, name = (part, named.id_of(part)) if part else (named, named.folder)
    of_part = f": {part.title}" if part else ""
    seen = min(progress.hints_seen(course, name) + 1, len(hinted.hints))
    progress.note_hints(course, name, seen)
    for number, hint in enumerate(hinted.hints[:seen], start=1):
        console.print(f"Hint {number} of {len(hinted.hints)}{of_part}", style="bold")
        console.print(Padding(hint, (0, 0, 0, 2)))
    if seen < len(hinted.hints):
        console.print(f"The next one says more: minipaged lessons hint {named.number}", style="dim")
    else:
        console.print(f"That was the last. The answer itself: {hinted.key}", style="dim")


@lessons.command()
def diff(lesson: Annotated[str, LESSON]) -> None:
    """Show a solved lesson beside its answer key, with the costs of both."""
    from .diff import show_diff  # it takes NumPy, which all other commands start without

    course = _own_course()
    named = course.find(lesson)
    if named.folder not in progress.solved(course):
        raise InvalidRequestError(f"lesson {named.number} is not solved yet: its key would give it away")
    show_diff(named, console)


@lessons.command()
def reset(lesson: Annotated[str, LESSON]) -> None:
    """Make a lesson's exercise anew; yours is kept beside it."""
    named = _own_course().find(lesson)
    path = named.exercise_path
    if path.is_file() and is_untouched(named, path):
        console.write(f"{path} is as it was at the start: nothing to do")
        return
    try:
        start = starting_text(named)
        if path.is_file():
            kept = path.with_suffix(".py.old")
            shutil.copyfile(path, kept)
            console.write(f"What you wrote is kept in {kept}")
        path.write_text(start, encoding="utf-8")
    except OSError as error:
        raise InvalidRequestError(f"{path} can't be made anew: {error.strerror or error}") from error
    console.write(f"{path} is as it was at the start")


@lessons.command()
def copy(folder: Path) -> None:
    """Copy the lessons to a new folder of your own."""
    course = find_course()
    unwanted = shutil.ignore_patterns("__pycache__", ".*", "*.old", "*.start", "__init__.py")
    try:
        _check_new(folder)
        shutil.copytree(course.root, folder, ignore=unwanted, dirs_exist_ok=True)
        for lesson in Course(folder).lessons:
            lesson.exercise_path.write_text(starting_text(lesson), encoding="utf-8")
    except OSError as error:
        raise InvalidRequestError(f"folder {str(folder)!r}: {error.strerror or error}") from error
    console.write(f"The lessons are in {folder}. Now:\n  cd {shlex.quote(str(folder))}\n  pytest")


def _check_new(folder: Path) -> None:
    """Refuse a folder that isn't empty, can't be made, or lies among lessons. May raise OSError."""
    named = f"folder {str(folder)!r}"
    if file := next((path for path in (folder, *folder.parents) if path.is_file()), None):
        raise InvalidRequestError(f"{named}: {str(file)!r} is a file")
    if folder.exists() and any(folder.iterdir()):
        raise InvalidRequestError(f"{named} exists and isn't empty: name a new one")
    resolved = folder.resolve()
    if course := next((path for path in (resolved, *resolved.parents) if holds_a_course(path)), None):
        raise InvalidRequestError(f"{named} lies in {str(course)!r}, which holds lessons: name another")


@lessons.command()
def watch(lesson: Annotated[str | None, LESSON] = None) -> NoReturn:
    """Grade on every save, one lesson or all."""
    course = _own_course()
    if importlib.util.find_spec("pytest") is None:
        raise InvalidRequestError("pytest is not installed: pip install pytest")
    target = course.find(lesson).path if lesson else course.root
    command = [sys.executable, "-m", "pytest", str(target)]
    seen: dict[str, str] = {}
    while True:
        saved = {graded.folder: progress.digest(graded) for graded in course.lessons}
        if saved != seen:
            seen = saved
            console.clear()
            # In a session of its own pytest gets no Ctrl-C. `run` kills it, so it prints no traceback.
            subprocess.run(command, check=False, start_new_session=True)
            console.print("Waiting for a save; Ctrl-C ends it.", style="dim")
        time.sleep(0.3)


def _own_course() -> Course:
    """Return a course with exercises to write. Raises InvalidRequestError for the installed package."""
    course = find_course()
    if not is_own_copy(course):
        raise InvalidRequestError(f"{course.root} is the installed package: {COPY_FIRST}")
    return course
