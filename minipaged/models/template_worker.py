"""Render chat templates in a process of their own, which may hang, grow or crash without harm.

A template is code that comes with a model. Loops can be counted from inside, but one `9**9**9` never comes
back to Python, so the whole process ends when time is up. chat_template.py starts this file as a script.
Each line of standard input asks for one text: {"template", "variables"} and its limits, {"seconds", "bytes",
"longest"}. Each line of standard output answers: {"text"}, or {"kind", "why"} with a kind of "refused",
"broken", "failed" or "limit". With "grown" this process holds more memory than it should keep.

The environment is that of transformers' apply_chat_template, so the texts are the same.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import sys
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

SMALL = 32 << 20  # bytes that may stay: compiled templates are kept, with the texts in them


class RefusalError(jinja2.TemplateError):
    """The template called raise_exception: it doesn't take these messages."""


class Generation(jinja2.ext.Extension):
    """`{% generation %}` marks an answer for training: here its body is rendered as it stands."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> Any:
        """Return the body of the tag."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


class TemplateNamespace(jinja2.utils.Namespace):
    """A namespace that takes no underscored names, which lead to Python's internals."""

    def __init__(*args: Any, **names: Any) -> None:
        self, values = args[0], dict(*args[1:], **names)
        for name in values:
            _check_name(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name: Any, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


class TemplateDict:
    """`dict(...)` without the attributes of the class."""

    def __call__(self, *args: Any, **names: Any) -> dict[Any, Any]:
        return dict(*args, **names)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        """Return a dictionary with these keys."""
        return dict.fromkeys(*args)


@lru_cache(maxsize=8)
def compiled(template: str) -> jinja2.Template:
    """Compile a template."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {
        "raise_exception": _refuse,
        "strftime_now": lambda form: datetime.now().strftime(form),
        "dict": TemplateDict(),
        "namespace": TemplateNamespace,
    }
    return environment.from_string(template)


def answer(template: str, variables: dict[str, Any]) -> dict[str, str]:
    """Render a template, or say why not."""
    kind = "broken"
    try:
        ready = compiled(template)
        kind = "failed"
        return {"text": ready.render(variables)}
    except RefusalError as error:
        return {"kind": "refused", "why": str(error)}
    except MemoryError:
        return {"kind": "limit", "why": "needs too much memory"}
    except RecursionError:
        return {"kind": "limit", "why": "calls itself too often"}
    except jinja2.sandbox.SecurityError as error:
        return {"kind": "broken", "why": str(error)}
    except jinja2.TemplateSyntaxError as error:
        return {"kind": kind, "why": f"line {error.lineno}: {error.message}"}
    except Exception as error:
        return {"kind": kind, "why": f"{type(error).__name__}: {error}"}


def main() -> None:
    """Answer until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asked
    nowhere = open(os.devnull, "w")  # noqa: SIM115
    start = _memory()
    print("{}", flush=True)
    for line in sys.stdin.buffer:
        task = json.loads(line)
        # A thread of C ends the process, whatever Python is doing then.
        faulthandler.dump_traceback_later(task["seconds"], exit=True, file=nowhere)
        _limit_memory(start + task["bytes"])
        try:
            reply = answer(task["template"], task["variables"])
            # Characters, which are never more than the bytes that the asking process counts and allows.
            if len(reply.get("text", "")) > task["longest"]:
                reply = {"kind": "limit", "why": f"makes a text of {len(reply['text'])} characters"}
            told = json.dumps(reply | {"grown": _memory() > start + SMALL}, ensure_ascii=False)
            encoded = told.encode("utf-8", "surrogatepass")
        except MemoryError:
            encoded = b'{"kind": "limit", "why": "needs too much memory", "grown": true}'
        faulthandler.cancel_dump_traceback_later()
        sys.stdout.buffer.write(encoded + b"\n")
        sys.stdout.buffer.flush()


def _memory() -> int:
    """The bytes of this process's address space; 0 where the system is not Linux."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, AttributeError):
        return 0


def _limit_memory(most: int) -> None:
    """Let this process grow to `most` bytes. Only Linux does: elsewhere the time alone limits it."""
    if sys.platform != "linux":
        return
    import resource

    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (most if hard == -1 else min(most, hard), hard))


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.sandbox.SecurityError(f"a namespace takes no name that begins with _, got {name!r}")


def _refuse(message: Any) -> None:
    raise RefusalError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """jinja's own filter escapes HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


if __name__ == "__main__":
    main()
