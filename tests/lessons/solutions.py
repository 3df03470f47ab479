"""Solutions of the lessons that differ from the answer key: in wrong/ and right/, a table per lesson.

    [rounds_down]
    belief = "The quotient is rounded down: the tokens of the last block have no slot."
    words = ["too late", "round the quotient up"]
    edit = '''
    -    return -(-num_tokens // block_size)
    +    return num_tokens // block_size
    '''

`belief` is what the author of the solution takes for true. The report of a wrong solution must hold all
`words`. `edit` is a diff of the key: "-" begins a line that goes, "+" one that comes and " " one that stays;
"@@" stands between two places. The key must hold each place exactly once.
"""

from __future__ import annotations

import importlib
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from minipaged.course.manifest import Course, Lesson

HERE = Path(__file__).parent
COURSE = Course(HERE.parents[1] / "lessons")


@dataclass(frozen=True)
class Solution:
    """One solution of a lesson, as an edit of its answer key."""

    lesson: Lesson
    name: str
    belief: str
    edit: str
    words: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.lesson.folder}/{self.name}"

    def write(self, folder: Path) -> Path:
        """Write it into a file in `folder`, as a learner would hand it in, and return the file."""
        path = folder / f"{self.name}.py"
        path.write_text(as_submission(self.lesson, edited(key_text(self.lesson), self.edit, str(self))))
        return path


def solutions(kind: str, lesson: Lesson) -> list[Solution]:
    """The solutions of a lesson of one kind, "wrong" or "right", by name."""
    path = HERE / kind / f"{lesson.folder}.toml"
    tables = tomllib.loads(path.read_text()) if path.is_file() else {}
    return [
        Solution(lesson, name, table["belief"], table["edit"], tuple(table.get("words", ())))
        for name, table in sorted(tables.items())
    ]


def key_text(lesson: Lesson) -> str:
    """The text of a lesson's answer key: the keys of its parts as one file, without imports of each other."""
    modules = [importlib.import_module(key) for key in lesson.keys]
    first, *others = [Path(str(module.__file__)).read_text() for module in modules]
    names = "|".join(["__future__", *(rf"\.{key.rpartition('.')[2]}" for key in lesson.keys)])
    return first + "".join(re.sub(rf"^from ({names}) import .*\n", "", text, flags=re.M) for text in others)


def edited(text: str, edit: str, name: str) -> str:
    """The text with an edit made. Raises ValueError unless each of its places is found exactly once."""
    for hunk in edit.removesuffix("\n").split("\n@@\n"):
        lines = hunk.split("\n")
        if unknown := [line for line in lines if line[:1] not in ("", " ", "-", "+")]:
            raise ValueError(f"{name}: a line of an edit begins with '-', '+' or ' ', not as {unknown[0]!r}")
        before = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("+"))
        after = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("-"))
        found = len(re.findall(f"^(?={re.escape(before)})", text, re.MULTILINE))
        if before == after or found != 1:
            raise ValueError(
                f"{name}: the key must hold this once, to be changed, not {found} times:\n{hunk}"
            )
        text = re.sub(f"^{re.escape(before)}", lambda _, new=after: new, text, count=1, flags=re.MULTILINE)
    return text


def as_submission(lesson: Lesson, text: str) -> str:
    """The text of a key made to work outside of its package, with the library's own errors."""

    def absolute(found: re.Match[str]) -> str:
        parents = lesson.key.split(".")[: -len(found[2])]
        return found[1] + ".".join([*parents, found[3]] if found[3] else parents)

    text = re.sub(r"^( *from )(\.+)(\w*)", absolute, text, flags=re.MULTILINE)
    errors = re.findall(r"^class (\w+Error)\(", text, re.MULTILINE)
    return text + (f"\n\nfrom {lesson.key} import {', '.join(errors)}\n" if errors else "")
