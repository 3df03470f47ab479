"""Write a conversation out with the model's own chat template, within limits of time and memory.

The template comes with the model and may be anything. It is rendered in another process, template_worker.py,
because only a process can be stopped wherever it is: from any thread, on any platform, inside any call. Each
rendering may take `TIME_LIMIT` seconds and, on Linux, 128 MiB more than its messages need; on other systems
nothing but the time limits the memory. A process starts in some 0.1 s and is then kept.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import reprlib
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..config import size_of_text
from ..errors import BackendUnavailableError, InvalidRequestError, ModelNotSupportedError, one_line

TIME_LIMIT = 5.0  # seconds; a template of a real model takes a thousandth of one
MEMORY_LIMIT = 128 << 20  # bytes
MOST_IDLE = 4  # processes kept for the next call
BYTES_PER_BYTE = 32  # of messages: Python holds a text in up to 4 bytes for each character, several times
_ERRORS: dict[str, tuple[type[InvalidRequestError | ModelNotSupportedError], str]] = {
    "refused": (InvalidRequestError, "refuses these messages: "),
    "failed": (InvalidRequestError, "fails on these messages: "),
    "broken": (ModelNotSupportedError, "is broken: "),
    "limit": (ModelNotSupportedError, ""),
}
_REASONING = ("reasoning_content", "thinking", "reasoning")

Message = Mapping[str, str]


def render_chat(tokenizer: Any, messages: Sequence[Message], max_bytes: int) -> str:
    """Return the conversation as the model wants to read it, up to where its answer begins.

    Raises InvalidRequestError for messages that are none, or that the template refuses, and
    ModelNotSupportedError for a template that is broken or doesn't end.
    """
    template = _template(tokenizer)
    given = _checked(messages, max_bytes)
    variables = {name: _plain(value) for name, value in tokenizer.special_tokens_map.items()}
    variables |= {"messages": given, "tools": None, "documents": None, "add_generation_prompt": True}
    try:
        task = json.dumps({"template": template, "variables": variables}, ensure_ascii=False)
        size = len(task.encode())
    except (TypeError, ValueError, RecursionError) as error:  # an encoding's error is a ValueError
        raise InvalidRequestError(f"messages must hold texts and JSON values: {one_line(error)}") from None
    answer = _ask(task, size, max_bytes)
    if "text" not in answer:
        raise _error(answer)
    size_of_text("the text that the chat template makes of messages", answer["text"], max_bytes)
    return answer["text"]


def is_conversation(messages: Any) -> bool:
    """Return True for one conversation, False for several. Raises InvalidRequestError for neither."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise InvalidRequestError(f"messages must be a list of messages, got {reprlib.repr(messages)}")
    if not messages:
        raise InvalidRequestError("messages is empty: at least one message is needed")
    return isinstance(messages[0], Mapping)


def _template(tokenizer: Any) -> str:
    if tokenizer is None or not getattr(tokenizer, "chat_template", None):
        raise InvalidRequestError("this model has no chat template: use generate")
    template = tokenizer.chat_template
    if isinstance(template, Mapping):  # several templates, by name
        template = template.get("default")
    if not isinstance(template, str):
        raise ModelNotSupportedError(
            f"the model's chat template must be a text, got {reprlib.repr(tokenizer.chat_template)}"
        )
    try:
        template.encode()
    except UnicodeEncodeError as error:
        raise ModelNotSupportedError(f"the model's chat template is no valid text: {error}") from None
    return template


def _checked(messages: Any, max_bytes: int) -> list[dict[str, Any]]:
    """The messages as a template may read them. Raises InvalidRequestError, which names the message."""
    if not is_conversation(messages):
        raise InvalidRequestError(f"a message needs a role and a content, got {reprlib.repr(messages[0])}")
    given = []
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or not {"role", "content"} <= set(message):
            raise InvalidRequestError(f"a message needs a role and a content, got {reprlib.repr(message)}")
        for key in ("role", "content"):
            if not isinstance(message[key], str):
                raise InvalidRequestError(
                    f"messages[{number}]: {key} must be a text, got {reprlib.repr(message[key])}"
                )
            size_of_text(f"messages[{number}]: {key}", message[key], max_bytes)
        given.append(_as_templates_read(message))
    if (total := sum(len(message["content"].encode()) for message in given)) > max_bytes:
        raise InvalidRequestError(
            f"messages has {total} bytes of text, max_prompt_bytes={max_bytes} are allowed"
        )
    return given


def _as_templates_read(message: Message) -> dict[str, Any]:
    """Leave out what is None, and give reasoning under each name that templates use, as transformers does."""
    given = {name: value for name, value in message.items() if value is not None}
    reasoning = next((given[name] for name in _REASONING if name in given), None)
    return given if reasoning is None else {"thinking": reasoning, **given, "reasoning_content": reasoning}


def _plain(token: Any) -> Any:
    """A special token's text, or those of several."""
    return [str(part) for part in token] if isinstance(token, (list, tuple)) else str(token)


def _error(answer: dict[str, str]) -> InvalidRequestError | ModelNotSupportedError:
    kind, what = _ERRORS[answer["kind"]]
    why = " ".join(answer["why"].split())[:200] or "no reason given"
    return kind(f"the model's chat template {what}{why}")


# ------------------------------------------------------------------ the other process


class _Worker:
    """A process that renders one template at a time."""

    def __init__(self) -> None:
        # -P: what else lies in the script's folder is nothing to import.
        command = [sys.executable, "-P", str(Path(__file__).with_name("template_worker.py"))]
        pipe = subprocess.PIPE
        environment = os.environ | {"MALLOC_ARENA_MAX": "1"}  # glibc reserves 64 MiB for each further arena
        try:
            self.process = subprocess.Popen(
                command, env=environment, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL
            )
        except OSError as error:
            raise BackendUnavailableError(f"no process for chat templates can be started: {error}") from None
        if not self.process.stdout.readline():  # type: ignore[union-attr]
            code = self.process.wait()
            raise BackendUnavailableError(f"the process for chat templates ended at once, exit code {code}")

    def ask(self, line: bytes) -> bytes:
        """Send a line and return the answer, or nothing if the process ended."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError, OSError):
            self.process.stdin.write(line)
            self.process.stdin.flush()
            return self.process.stdout.readline()
        return b""

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        with contextlib.suppress(OSError):
            self.process.communicate()


_idle: list[_Worker] = []


@atexit.register
def _close_idle() -> None:
    while _idle:
        _idle.pop().close()


if hasattr(os, "register_at_fork"):  # two processes must not talk to one worker
    os.register_at_fork(after_in_child=_idle.clear)


def _ask(task: str, size: int, longest: int) -> dict[str, Any]:
    """What a worker answers. Whatever interrupts this, the worker that was asked is not asked again."""
    limits = {"seconds": TIME_LIMIT, "bytes": MEMORY_LIMIT + BYTES_PER_BYTE * size, "longest": longest}
    worker = _take()
    start = time.monotonic()
    try:
        line = f"{json.dumps(limits)[:-1]}, {task[1:]}\n".encode()
        if answer := worker.ask(line):
            reply = json.loads(answer.decode("utf-8", "surrogatepass"))
            if not reply["grown"] and len(_idle) < MOST_IDLE:
                _idle.append(worker)
                worker = None  # type: ignore[assignment]
            return reply
        seconds = time.monotonic() - start
    finally:
        if worker is not None:
            worker.close()
    if seconds >= TIME_LIMIT:
        return {"kind": "limit", "why": f"did not end within {TIME_LIMIT:g} s"}
    return {
        "kind": "limit",
        "why": f"ended the process that renders it (exit code {worker.process.returncode})",
    }


def _take() -> _Worker:
    """An idle worker that is still alive, or a new one."""
    while True:
        try:
            worker = _idle.pop()
        except IndexError:
            return _Worker()
        if worker.process.poll() is None:
            return worker
        worker.close()
