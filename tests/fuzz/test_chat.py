"""Hostile chat templates, messages and texts: typed errors only, in time and memory, a terminal unharmed.

MINIPAGED_FUZZ_TIMES says how many cases; each is made from its number alone.
"""

from __future__ import annotations

import io
import random
import re
import resource
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from how_often import how_often

from minipaged import LLM
from minipaged.errors import InvalidRequestError, ModelNotSupportedError
from minipaged.models import chat_template
from minipaged.terminal import visible
from minipaged.terminal.console import DataConsole

TIMES = how_often(24, 200)
LONGEST = 10.0  # seconds of a call
GROWTH = 200 << 20  # bytes
MAX_PROMPT_BYTES = 1 << 20

VALUES = r"""messages; messages[0].content; messages[-1]; 'x'; 'é😀'; 9; -1; 10**9; [1, 2]; {'a': 1}; none
self; bos_token; range(99999); '\ud800'; '\x1b]0;t\x07'; ''.__class__; namespace(a=1); lipsum; cycler; joiner
loop; caller; messages.append; '{0.__class__}'; strftime_now('%Y' * 99); 1e308; undefined; '%9999999d'"""
OPERATORS = "+; ~; *; **; %; //; /; -; ==; in; and; |join(; .join(; |center(; .format(; ["
FILTERS = """tojson; length; list; sort; upper; trim; first; sum; batch(10**8, 'x'); indent(10**8); reverse
map(attribute='content'); join('x' * 10**7); replace('', 'xx'); center(10**9); wordwrap(1); random; pprint
urlize; xmlattr; format(1, 2); slice(10**8); groupby('role'); items; int; unique; default(9); safe; string"""
WRAPPERS = (
    "{{% for a in range(99999) %}}{{% for b in range(99999) %}}{}{{% endfor %}}{{% endfor %}}",
    "{{% set n = namespace(s='ab') %}}{{% for i in range(99) %}}{{% set n.s = n.s ~ n.s %}}{{% endfor %}}{}",
    "{{% macro f(x) %}}{}{{{{ f(x) }}}}{{% endmacro %}}{{{{ f(1) }}}}",
    "{{% for m in messages %}}{}{{% endfor %}}",
    "{{% if messages[0].role == 'system' %}}{{{{ raise_exception('no\nsystem \x1b[2J') }}}}{{% endif %}}{}",
    "{{% set x %}}{}{{% endset %}}{{{{ x * 10**6 }}}}",
    "{{% generation %}}{}{{% endgeneration %}}",
    "{{% for i in range(9) recursive %}}{}{{{{ loop([i]) }}}}{{% endfor %}}",
    "{{% filter upper %}}{}{{% endfilter %}}{{% break %}}",
    "{{% include 'x' %}}{}",
    "{}" * 300,
)
PIECES = (
    "\x1b[2J",
    "\x1b]52;c;aGk=\x07",
    "\r",
    "\x9b",
    "\u202e",
    "[bold]",
    "[/]",
    "\\[",
    "C:\\",
    ":smile:",
    "é",
    "안",
    "\t",
    "\n",
)


def one_of(rng: random.Random, choices: str) -> str:
    return rng.choice(re.split("; |\n", choices))


def expression(rng: random.Random) -> str:
    text = one_of(rng, VALUES)
    for _ in range(rng.randrange(4)):
        if rng.random() < 0.5:
            text = f"({text})|{one_of(rng, FILTERS)}"
        else:
            operator = one_of(rng, OPERATORS)
            text = f"({text}) {operator} {one_of(rng, VALUES)}" + {"(": ")", "[": "]"}.get(operator[-1], "")
    return text


def template(rng: random.Random) -> str:
    """Nested statements around an expression, one in four with a few characters lost or doubled."""
    text = f"{{{{ {expression(rng)} }}}}"
    for _ in range(rng.randrange(3)):
        text = (
            rng.choice(WRAPPERS).replace("{}", "\0").replace("{{", "{").replace("}}", "}").replace("\0", text)
        )
    if rng.random() < 0.25:
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(text))
            text = (
                text[:at] + rng.choice(("", text[at] * 2, "{%", "\ud800", "\0", "(" * 500)) + text[at + 1 :]
            )
    return text


def text(rng: random.Random) -> str:
    return "".join(rng.choice(PIECES) for _ in range(rng.randrange(1, 40)))


def messages(rng: random.Random) -> Any:
    """One in two as they should be, else with anything anywhere."""
    content = rng.choice((text(rng), "x" * 100_000, "hello"))
    good = [
        {"role": role, "content": content} for role in ("system", "user", "assistant")[: rng.randint(1, 3)]
    ]
    if rng.random() < 0.5:
        return good
    odd = rng.choice(
        (None, 5, [], {}, "text", b"x", [None], [[]], "\ud800", object(), float("nan"), {1: 2}, ("a",))
    )
    endless: list[Any] = []
    endless.append(endless)
    user = {"role": "user", "content": "x"}
    shapes = (odd, [odd], [good, odd], [*good, odd], [user | {"role": odd}], [user | {"content": odd}])
    shapes += ([user | {"extra": odd}], [user | {"extra": endless}], [{"content": odd}], tuple(good))
    return rng.choice((*shapes, [user | {"content": "x" * (MAX_PROMPT_BYTES + 1)}]))


def model(chat: Any) -> LLM:
    """The part of an LLM that writes conversations out: its tokens are bytes."""

    class Tokenizer(SimpleNamespace):
        def __call__(self, text: str, add_special_tokens: bool) -> Any:
            return SimpleNamespace(input_ids=text.encode())

    llm = LLM.__new__(LLM)
    tokenizer = Tokenizer(chat_template=chat, special_tokens_map={"bos_token": "<s>"})
    llm.engine = SimpleNamespace(  # type: ignore[assignment]
        tokenizer=tokenizer,
        config=SimpleNamespace(max_prompt_bytes=MAX_PROMPT_BYTES),
        intake=SimpleNamespace(tokenize_text=lambda text, add_special_tokens: list(text.encode())),
    )
    llm.generate = lambda prompts, *_: prompts  # type: ignore[method-assign, assignment, misc]
    return llm


def peaks() -> list[int]:
    """The most memory so far, in bytes: of this process, and of those that render templates."""
    found = [1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]
    for worker in chat_template._idle:
        status = Path(f"/proc/{worker.process.pid}/status")
        if status.exists():
            found.append(1024 * int(re.findall(r"VmHWM:\s+(\d+) kB", status.read_text())[0]))
    return found


def within_bounds(act: Callable[[], Any]) -> str:
    """Make a call: "" or the typed error it ended with. Time and memory count from the call."""
    start, before, error = time.monotonic(), peaks()[0], ""
    try:
        act()
    except (InvalidRequestError, ModelNotSupportedError) as caught:
        error = str(caught)
        assert error and len(error.splitlines()) == 1 and len(error) < 1000
    here, *workers = peaks()
    assert time.monotonic() - start < LONGEST
    assert here - before < GROWTH and all(each < GROWTH for each in workers)
    return error


@pytest.mark.parametrize("number", range(TIMES))
def test_a_hostile_template(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(number)
    llm = model(template(rng))
    with monkeypatch.context() as patch:
        patch.setattr(chat_template, "TIME_LIMIT", 0.3)  # one in twenty would take the whole 5 s
        within_bounds(lambda: llm.chat([{"role": "user", "content": "hi"}]))
    sound = model("{{ messages[0].content }}")
    assert sound.chat_token_ids([{"role": "user", "content": "next"}]) == list(b"next")


@pytest.mark.parametrize("number", range(TIMES))
def test_hostile_messages(number: int) -> None:
    given = messages(random.Random(number))
    llm = model("{% for m in messages %}{{ m.role + m.content }}{% endfor %}")
    error = within_bounds(lambda: llm.chat(given))
    if not error:
        expected = "".join(each["role"] + each["content"] for each in given)
        assert llm.chat(given) == [list(expected.encode())]


@pytest.mark.parametrize("number", range(TIMES))
def test_a_hostile_text(number: int) -> None:
    """Printed piece by piece, as an answer streams."""
    rng = random.Random(number)
    whole = text(rng) + chr(rng.randrange(0x110000)) + text(rng)
    printed = {}
    for is_terminal in (True, False):
        stream = io.StringIO()
        stream.isatty = lambda answer=is_terminal: answer  # type: ignore[method-assign, misc]
        console = DataConsole(file=stream, color_system=None)

        def stream_out(console: DataConsole = console) -> None:
            for at in range(0, len(whole), 2):
                console.write(whole[at : at + 2], end="")

        assert within_bounds(stream_out) == ""
        printed[is_terminal] = stream.getvalue()
    assert printed[False] == whole
    assert printed[True] == visible(whole) and visible(printed[True]) == printed[True]
