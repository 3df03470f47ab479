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
import markup  # noqa: E402
import outputs  # noqa: E402
import playground_page  # noqa: E402
import sources  # noqa: E402
from directives import COURSE, REPOSITORY, Here  # noqa: E402
from summary import summary  # noqa: E402

from minipaged.view.page import SCRIPTS  # noqa: E402

BEGUN = time.time()
MODULES = HERE / "node_modules"
PYODIDE = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
DIRECTIVE = re.compile(r"^\{\{ (\w+)(?: (.*?))? \}\}$", re.MULTILINE)
TOLD = 20  # pages
CELL = re.compile(r"^```python cell\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUN = re.compile(r"^```python run\n(.*?)^```$", re.MULTILINE | re.DOTALL)


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
    """Complete what Markdown made of the page."""
    html = markup.complete(html)
    return html.replace("__codelineno-0-", "L") if page.file.src_uri.startswith("source/") else html


def on_post_page(output: str, page: Page, config: Any) -> str:
    """Draw the formulas, now that the search index has them as they were written."""
    return formulas.drawn(output)
