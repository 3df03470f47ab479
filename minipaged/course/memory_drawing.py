"""Draw in plain text which program of a kernel read and wrote which block of a tensor.

A column is an index of the first axis: of a paged tensor [num_blocks, ...] a block, of a list an entry.
The lessons' tests launch their toys by `try_launch`. Page: docs/lessons.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .checks import Why, WrongAnswerError, reason, trying
from .memory_interpreter import poisoned_loads
from .memory_map import OutOfBoundsError, Recording, can_record, recording
from .raised import chain

WIDTH = 80
MOST_PROGRAMS = 12

Row = tuple[str, dict[int, str]]  # a program, and what it did to each block that it touched


UNDEFINED_LANES = (
    "a masked tl.load without `other` leaves its hidden lanes undefined, and this kernel counts on them. The "
    "interpreter puts 0 there, but a GPU leaves anything. Say what these lanes hold: "
    "tl.load(..., mask=..., other=0)"
)


@contextmanager
def undefined_lanes() -> Iterator[None]:
    """Grade with poison in the lanes that no load defines. The checks in here must pass without it."""
    try:
        with poisoned_loads():
            yield
    except WrongAnswerError as wrong:
        raise WrongAnswerError(wrong.tried, wrong.expected, wrong.got, UNDEFINED_LANES) from wrong


def draw(recorded: Recording, *arrays: str) -> str:
    """Draw a table per launch and array: of `arrays`, or of all arrays that were used.

    A cell says r (read) or w (written). Where only some entries of the second axis were used (of key_cache
    [num_blocks, block_size, ...] some slots of a block) their number follows.
    """
    names = arrays or tuple(dict.fromkeys(access.array for access in recorded.accesses))
    parts = [
        "\n".join(_table(kernel, name, recorded.shapes[name], rows))
        for kernel in dict.fromkeys(access.kernel for access in recorded.accesses)
        for name in names
        if (rows := _rows(recorded, kernel, name))
    ]
    return "\n\n".join(parts) or f"no program touched {', '.join(names) or 'anything'}"


def _rows(recorded: Recording, kernel: str, name: str) -> list[Row]:
    touched: dict[str, dict[int, dict[str, set[int]]]] = {}
    for access in recorded.accesses:
        if (access.kernel, access.array) == (kernel, name) and access.index:
            first, second = (*access.index, 0)[:2]
            blocks = touched.setdefault(access.program, {})
            blocks.setdefault(first, {}).setdefault(access.kind[0], set()).add(second)
    shape = recorded.shapes[name]
    return [
        (program, {block: _cell(kinds, shape) for block, kinds in touched[program].items()})
        for program in sorted(touched, key=_numbers)
    ]


def _numbers(program: str) -> list[int]:
    """Return the numbers in a program's name. The threads of the simulator come in any order."""
    return [int(number) for number in re.findall(r"\d+", program)]


def _cell(kinds: dict[str, set[int]], shape: tuple[int, ...]) -> str:
    """Return r, w, rw, or r3 for three entries of the second axis."""
    whole = shape[1] if len(shape) > 1 else 1
    return "".join(
        kind if len(entries) == whole else f"{kind}{len(entries)}" for kind, entries in sorted(kinds.items())
    )


def _table(kernel: str, name: str, shape: tuple[int, ...], rows: list[Row]) -> Iterator[str]:
    axis = "entry" if len(shape) == 1 else "row" if len(shape) == 2 else "block"
    yield f"{kernel}: which program used which {axis} of {name} {list(shape)}"
    shown = rows[:MOST_PROGRAMS]
    margin = max(len(axis), *(len(program) for program, _ in shown))
    cell = 1 + max(len(str(shape[0] - 1)), *(len(text) for _, blocks in rows for text in blocks.values()))
    at_once = max(1, (WIDTH - margin) // cell)
    touched = sorted({block for _, blocks in rows for block in blocks})
    columns = list(range(shape[0])) if shape[0] <= at_once else touched
    for start in range(0, len(columns), at_once):
        part = columns[start : start + at_once]
        yield f"{axis:>{margin}}" + "".join(f"{block:>{cell}}" for block in part)
        for program, blocks in shown:
            yield f"{program:>{margin}}" + "".join(f"{blocks.get(block, '·'):>{cell}}" for block in part)
    if len(rows) > len(shown):
        yield f"and {len(rows) - len(shown)} more programs"
    if few := next((text for _, blocks in rows for text in blocks.values() if text[-1].isdigit()), ""):
        number = few.lstrip("rw")
        yield f"{few}: {number} of the {axis}'s {shape[1]} entries; {few.removesuffix(number)}: all of them"


def try_launch(
    tried: str, why: Why, launch: Callable[[], Any], drawn: Sequence[str], **arrays: Any
) -> tuple[str, Recording]:
    """Launch, and return the drawing of `drawn`, names among `arrays`, and what was recorded.

    Both are empty where kernels are compiled. Raises WrongAnswerError for an access outside of the arrays.
    `tried` and `why` are as in `check`. If `why` is a function, it gets the words for that access. Any other
    exception is reported without a reason, unless it is one of Triton's own that says little.
    """
    with trying(tried, _of_triton):
        if not can_record():
            launch()
            return "", Recording()
        with recording(**arrays) as recorded:
            try:
                launch()
            except Exception as error:
                causes = chain(error, "__cause__")  # an interpreter wraps the error of an access
                outside = next((str(cause) for cause in causes if isinstance(cause, OutOfBoundsError)), None)
                if outside is None:
                    raise
                touched = any(access.array in drawn for access in recorded.accesses)
                got = f"{outside}\n{draw(recorded, *drawn)}" if touched else outside
                expected = "no access outside of the kernel's arrays"
                raise WrongAnswerError(tried, expected, got, reason(why, outside)) from error
    return draw(recorded, *drawn), recorded


def _of_triton(error: Any) -> str:
    """Return what the interpreter means by a mask of an unsupported dtype, or by two dtypes, or ""."""
    if "must be same dtype" in str(error):
        return "tl.dot wants two tiles of one dtype, and its answer is float32 or wider: use x.to(dtype)"
    if "mask has unsupported dtype" not in str(error):
        return ""
    return (
        "a mask was combined with a single boolean, which the interpreter refuses: where a whole program has "
        "nothing to do, `return` early, or compare a vector"
    )
