"""What the site's pages may ask of the build, so that nothing on them is pasted.

A line of a page that is one of these is replaced when the site is built; a name that is gone fails the build:

    {{ code reference/allocator.py BlockAllocator.allocate }}     the source of a function, class or constant
    {{ twins allocator.py BlockAllocator.free | launch_free }}    reference and kernel, side by side
    {{ twins attention.py prefill_attention | _prefill.py _prefill_kernel }}    the kernel from another file
    {{ trace beams }}                                             the block view, replaying a recorded run
    {{ trace beams 4 }}                                           the same, opened at step 4
    {{ picture fold }}                                            a picture drawn by docs/_build/pictures
    {{ output minipaged lessons hint 3 }}                         a command, and what it prints
    {{ exercise 05_copy_on_write }}                               a lesson: what to write, and how to grade it
    {{ results cpu-huggingface.json }}                            what a benchmark measured, and where
    {{ playground }}                                              the same requests in one piece and in blocks
    {{ lessons }}                                                 the table of all lessons
    {{ clone }}                                                   how to get the repository

The lines of twins that do the same stand in docs/_build/twins.toml.

A fenced block opened with "```python cell" becomes a cell that runs in the browser. The build runs it too,
and prints below it what came out. One opened with "```python run" is run by the build alone, after those
before it on the same page.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import CountHandler

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

import cells  # noqa: E402
import formulas  # noqa: E402
import glossary_page  # noqa: E402
import outputs  # noqa: E402
import pictures  # noqa: E402
import playground_page  # noqa: E402
import results  # noqa: E402
import sources  # noqa: E402
import twins  # noqa: E402
from summary import summary  # noqa: E402

from minipaged.course.manifest import Course, Lesson  # noqa: E402
from minipaged.view.page import SCRIPTS  # noqa: E402

BEGUN = time.time()
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["minipaged"]["REPOSITORY"]
COURSE = Course(ROOT / "lessons")
MODULES = HERE / "node_modules"
PYODIDE = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
DIRECTIVE = re.compile(r"^\{\{ (\w+)(?: (.*?))? \}\}$", re.MULTILINE)
CODE_LINE = re.compile(
    r'(?P<opening><span id="__span-\d+-\d+")(?P<start>>(?:<a [^>]*></a>)?'
    r'(?:<span class="w">)?(?P<indent> *)(?:</span>)?(?:<span class="(?P<kind>\w+)">)?(?P<more> *))'
)
BROKEN = {"sd": 0, "c1": 2}  # how much further in a broken line goes on: docstrings and comments; code 4
TOLD = 20  # pages
CELL = re.compile(r"^```python cell\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUN = re.compile(r"^```python run\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ABBREVIATION = re.compile(
    r"(?P<heading><h[1-6][ >].*?</h[1-6]>)|<abbr title=\"(?P<text>[^\"]*)\">(?P<term>.*?)</abbr>", re.DOTALL
)


def on_startup(command: str, dirty: bool) -> None:
    """Under --quiet warnings would not be logged, and what is not logged does not fail a --strict build."""
    logger = logging.getLogger("mkdocs")
    logger.setLevel(min(logger.level, logging.WARNING))


def on_config(config: Any) -> Any:
    """Link to the repository from every page, if it has a public address."""
    config.repo_url = REPOSITORY or None
    return config


def on_post_build(config: Any) -> None:
    """Note when a build of site/ began that had nothing to warn of: the tests need no other one then."""
    if Path(config.site_dir) != ROOT / "site":
        return
    print(f"pages: all built, in {time.time() - BEGUN:.0f} s", flush=True)
    outputs.BUILT.unlink(missing_ok=True)
    counters = [each for each in logging.getLogger("mkdocs").handlers if isinstance(each, CountHandler)]
    if counters and not any(each.get_counts() for each in counters):
        outputs.BUILT.touch()
        os.utime(outputs.BUILT, (BEGUN, BEGUN))


def on_files(files: Files, config: Any) -> Files:
    """Add what is generated or comes from elsewhere in the repository."""
    if not MODULES.is_dir():
        raise PluginError("docs/_build/node_modules is missing: run make docs, which installs it")
    for name in PYODIDE:
        add(files, config, f"assets/pyodide/{name}", MODULES / "pyodide" / name)
    katex = MODULES / "katex" / "dist"
    add(files, config, "assets/run_cell.py", HERE / "run_cell.py")
    add(files, config, "assets/katex/katex.min.css", katex / "katex.min.css")
    for font in sorted(katex.glob("fonts/*.woff2")):
        add(files, config, f"assets/katex/fonts/{font.name}", font)
    for name in (*SCRIPTS, "block_view.css"):
        add(files, config, f"assets/{name}", ROOT / "minipaged" / "view" / name)
    traces = [path for path in outputs.TRACES.glob("*.json*") if path.name != "made_of.json"]
    for path in sorted([*traces, outputs.CARD]):
        add(files, config, f"assets/made/{path.name}", path)
    glossary = glossary_page.page(HERE / "glossary.md")
    files.append(File.generated(config, "glossary.md", content=glossary))
    text = {path.name: path.read_text() for path in sorted((ROOT / "reference").glob("*.py"))}
    files.append(File.generated(config, "assets/reference.json", content=json.dumps(text)))
    files.append(File.generated(config, "assets/playground.json", content=playground_page.sources()))
    for lesson in COURSE.lessons:
        made = {
            "task": sources.prose(lesson.path / "README.md"),
            "exercise": sources.page(lesson.path / "exercise.py"),
        }
        for name, content in made.items():
            files.append(File.generated(config, f"source/lessons/{lesson.folder}/{name}.md", content=content))
    for folder in sources.FOLDERS:
        for path in sorted((ROOT / folder).glob("*.py")):
            page = f"source/{folder}/{path.stem}.md"
            files.append(File.generated(config, page, content=sources.page(path)))
    return files


def add(files: Files, config: Any, uri: str, path: Path) -> None:
    """One file of the site whose content lies at `path`."""
    if files.get_file_from_path(uri):
        raise PluginError(f"{uri}: two files of the site have this name")
    if not path.is_file():
        raise PluginError(f"{uri}: {path.relative_to(ROOT)} is missing: run make docs, which makes it")
    files.append(File.generated(config, uri, abs_src_path=str(path)))


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    """Carry out what the page asks for."""
    _tell_progress(page, files)
    here = Here(page)
    page.meta.setdefault("description", summary(markdown))
    if re.search(r"^\{\{ (twins|lessons|trace)\b", markdown, re.MULTILINE):
        page.meta.setdefault("hide", []).append("toc")  # two columns, and a wide table, need the room
    markdown = CELL.sub(lambda match: cells.cell(match[1]), markdown)
    markdown = RUN.sub(lambda match: here.script(match[1]), markdown)
    return DIRECTIVE.sub(lambda match: here.directive(match[1], match[2] or ""), markdown)


def _tell_progress(page: Page, files: Files) -> None:
    """Say how far the build is: at its first page, and at each TOLD pages more."""
    pages = [file.src_uri for file in files.documentation_pages()] if files else []
    done = pages.index(page.file.src_uri) if page.file.src_uri in pages else 1
    if done % TOLD == 0:
        print(f"pages: {done} of {len(pages)} ...", flush=True)


def on_page_content(html: str, page: Page, config: Any, files: Files) -> str:
    """Lines of a source page are known by number: allocator.html#L71. A term is explained once a page.

    Lines of listings know where they go on when a narrow column breaks them.
    """
    html = _first_mentions(html) + _recordings(html)
    if 'class="listing"' in html:
        html = twins.fold(CODE_LINE.sub(_hanging, html))
    return html.replace("__codelineno-0-", "L") if page.file.src_uri.startswith("source/") else html


def on_post_page(output: str, page: Page, config: Any) -> str:
    """Draw the formulas, now that the search index has them as they were written."""
    return formulas.drawn(output)


def _recordings(html: str) -> str:
    """The traces and tours that a page names, inside it: a page read from a folder may not load a file.

    They are templates, because the theme runs every script of a page that it swaps in, whatever its type.
    """
    names = sorted(set(re.findall(r'data-(trace|tour)="#\w+-(\w+)"', html)))
    templates = []
    for kind, name in names:
        path = outputs.TRACES / f"{name}.{'jsonl' if kind == 'trace' else 'json'}"
        text = escape(path.read_text(encoding="utf-8"), quote=False)
        templates.append(f'<template id="{kind}-{name}" data-search-exclude>{text}</template>')
    return "".join(templates)


def _hanging(line: re.Match[str]) -> str:
    """The beginning of a line of code, with the column where it goes on if it is broken."""
    column = len(line["indent"] + line["more"]) + BROKEN.get(line["kind"], 4)
    return f'{line["opening"]} style="--hang:{column}ch"{line["start"]}'


def _first_mentions(html: str) -> str:
    """Keep the hover text of a term at its first mention outside of a heading, and nowhere else."""
    seen: set[str] = set()

    def keep(match: re.Match[str]) -> str:
        if match["heading"]:
            return ABBREVIATION.sub(lambda inner: inner["term"] or inner[0], match[0][4:-5]).join(
                (match[0][:4], match[0][-5:])
            )
        if match["text"] in seen:
            return match["term"]
        seen.add(match["text"])
        return match[0]

    return ABBREVIATION.sub(keep, html)


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
        return f'<div class="block-view" data-trace="#trace-{name}" data-scene="{name}"{more}></div>'

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
