"""The directives of a page, as docs/_build/hooks.py lists them: a method each."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import outputs
import pictures
import playground_page
import results
import sources
import twins
from mkdocs.exceptions import PluginError
from mkdocs.structure.pages import Page

from minipaged.course.manifest import Course, Lesson

ROOT = Path(__file__).parents[2]
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["minipaged"]["REPOSITORY"]
COURSE = Course(ROOT / "lessons")
WITHOUT_SCRIPT = (
    "<noscript><p data-search-exclude>The block view needs JavaScript, which is off here.</p></noscript>"
)


class Here:
    """The page that asks."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.up = "../" * page.file.src_uri.count("/")
        self.ran: list[str] = []  # the page's scripts so far
        self.printed = ""

    def directive(self, name: str, rest: str) -> str:
        """The Markdown or HTML that stands for a directive."""
        make = getattr(self, f"make_{name}", None)
        if make is None:
            raise PluginError(f"{self.page.file.src_uri}: no directive {name!r}")
        try:
            return str(make(rest))
        except (LookupError, OSError, ValueError) as error:
            raise PluginError(f"{self.page.file.src_uri}: {{{{ {name} {rest} }}}}: {error}") from error

    def make_code(self, rest: str) -> str:
        """A listing, with a link to where it stands."""
        file, *names = rest.split()
        return "\n\n".join(self.listing(file, name) for name in names or [""])

    def make_twins(self, rest: str) -> str:
        """Two columns: what the reference does, and what the kernel does."""
        return twins.markdown(rest, self.up)

    def listing(self, file: str, name: str) -> str:
        """One listing of a file of the repository."""
        code, line = sources.find(ROOT / file, name)
        target = f"{self.up}source/{file.removesuffix('.py')}.md#L{line}"
        listing = f'<div class="listing" markdown>\n\n{sources.fenced("python", code)}\n\n</div>'
        return f"{listing}\n\n[{file}, line {line}]({target}){{ .source }}"

    def make_trace(self, rest: str) -> str:
        """The block view of a recorded run, opened at a step or at its beginning."""
        name, _, step = rest.partition(" ")
        path = outputs.TRACES / f"{name}.jsonl"
        if not path.is_file():
            raise LookupError(
                f"no such trace; there are {sorted(p.stem for p in outputs.TRACES.glob('*.jsonl'))}"
            )
        if step and f'"step":{step},' not in path.read_text(encoding="utf-8"):
            raise LookupError(f"the trace {name} has no step {step}")
        more = f' data-step="{step}"' if step else ""
        if (outputs.TRACES / f"{name}.json").is_file():
            more += f' data-tour="#tour-{name}"'
        more += f' data-trace="#trace-{name}" data-scene="{name}"'
        return f'<div class="block-view"{more}>{WITHOUT_SCRIPT}</div>'

    def make_picture(self, rest: str) -> str:
        """A picture, for a wide page and for a phone, with what it shows in words."""
        return pictures.figure(rest)

    def make_playground(self, rest: str) -> str:
        """The same requests in one piece and in blocks, to watch and to change."""
        return playground_page.page()

    def make_output(self, rest: str) -> str:
        """A command, and what it printed when the site was built."""
        return sources.fenced("console", f"$ {rest}\n{outputs.of_command(rest)}")

    def make_results(self, rest: str) -> str:
        """A table of measured figures, with the machine and the date of the file in benchmarks/results/."""
        name, _, part = rest.partition(" ")
        return results.table(ROOT / "benchmarks" / "results" / name, part)

    def make_exercise(self, rest: str) -> str:
        """Where to try it oneself."""
        lesson = COURSE.find(rest)
        source = f"{self.up}source/lessons/{lesson.folder}"
        return (
            f'<div id="lesson-{lesson.number}"></div>\n\n'
            f'!!! example "Lesson {lesson.number}: {lesson.title}"\n'
            f"    You write {_names(lesson)}. About {lesson.minutes} minutes, {lesson.runs_on}.\n\n"
            f"    Read [README.md]({source}/task.md) and write in [exercise.py]({source}/exercise.md),\n"
            f"    both in `lessons/{lesson.folder}/`. Then, after [the first steps]({self.up}lessons.md):\n\n"
            f"        pytest lessons/{lesson.folder}\n"
        )

    def make_lessons(self, rest: str) -> str:
        """The course, from its manifest."""
        rows = [
            "| | Lesson | You write | Minutes | Runs on |",
            "| --- | --- | --- | --- | --- |",
        ]
        for each in COURSE.lessons:
            page = f"{self.up}{each.page.removeprefix('docs/')}#lesson-{each.number}"
            title = f"**[{each.title}]({page})**<br>{each.concept}"
            rows.append(
                f"| {each.number} | {title} | {_briefly(each.write)} | {each.minutes} | {each.runs_on} |"
            )
        return '<div class="lessons" markdown>\n\n' + "\n".join(rows) + "\n\n</div>"

    def make_clone(self, rest: str) -> str:
        """The commands that fetch the repository, or where to type the ones that follow."""
        if not REPOSITORY:
            return "In a copy of the repository, with Python 3.11 or newer and `make`:"
        commands = sources.fenced("bash", f"git clone {REPOSITORY}\ncd {Path(REPOSITORY).stem}")
        return f"With Python 3.11 or newer and `make`:\n\n{commands}"

    def script(self, code: str) -> str:
        """Python that the build runs, with the names of the page's scripts before it, and what it prints."""
        self.ran.append(code)
        printed = outputs.of_script("\n".join(self.ran))
        new = printed.removeprefix(self.printed).strip("\n")
        self.printed = printed
        return f"{sources.fenced('python', code.rstrip())}\n\n{sources.fenced('text', new)}"


def _names(lesson: Lesson) -> str:
    """What is to be written, the names of each part after its title."""
    groups = {f"in part {i}, {part.title}, ": part.write for i, part in enumerate(lesson.parts, start=1)}
    names = [
        title + ", ".join(f"`{name}`" for name in write)
        for title, write in (groups or {"": lesson.write}).items()
    ]
    return "; ".join(names)


def _briefly(names: Sequence[str], most: int = 3) -> str:
    """The first names, the methods of a class as one, and how many more there are."""
    counts = Counter(name.partition(".")[0] for name in names if "." in name)
    whole = dict.fromkeys(name.partition(".")[0] for name in names)
    parts = [
        f"`{name}`" + (f" ({_number(counts[name], 'method')})" if counts[name] else "") for name in whole
    ]
    if len(parts) <= most:
        return ", ".join(parts)
    return f"{', '.join(parts[: most - 1])} and {len(parts) - most + 1} more"


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
