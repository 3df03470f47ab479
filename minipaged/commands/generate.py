"""`minipaged generate` and `minipaged chat`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from ..errors import InvalidRequestError
from ..llm import LLM, Message
from ..outputs import RequestOutput
from ..sampling_params import BeamSearchParams, SamplingParams
from ..trace import Trace, write_page
from .show_blocks import BlockRecorder, print_summary

Params = SamplingParams | BeamSearchParams

# Text goes out as it is: no emoji codes, no colours of numbers, and no line breaks but its own in a pipe.
console = Console(highlight=False, emoji=False, soft_wrap=not sys.stdout.isatty())


def generate(args: argparse.Namespace, params: Params, make_llm: Callable[[], LLM]) -> None:
    """Generate for all prompts and print the texts; with --show-blocks, what the pool looked like."""
    if "" in args.prompts:
        raise InvalidRequestError("prompt is empty: at least one token is needed")
    llm = make_llm()
    prompts = [_token_ids(llm, prompt, args) for prompt in args.prompts]
    names = [_name(i) for i in range(len(prompts))]
    recorder = BlockRecorder(llm.engine)
    start = time.perf_counter()
    with _traced(llm, args.trace, " · ".join(args.prompts)):
        outputs = _serve(llm, dict(zip(names, prompts, strict=True)), params)
    seconds = time.perf_counter() - start
    if args.show_blocks:
        recorder.draw(console, dict(zip(names, args.prompts, strict=True)))
    for name, prompt in zip(names, args.prompts, strict=True):
        _print_answer(name, prompt, outputs[name])
    print_summary(console, llm, seconds)


def chat(args: argparse.Namespace, params: Params, make_llm: Callable[[], LLM]) -> None:
    """Talk until end of input. The conversation so far stays in the cache between turns."""
    llm = make_llm()
    messages: list[Message] = [{"role": "system", "content": args.system}] if args.system else []
    console.print("[dim]Type a message; an empty line, Ctrl-D or /exit ends the chat.[/]")
    while True:
        try:
            said = console.input("[bold cyan]you>[/] ").strip()
        except EOFError:
            said = ""
        if said in ("", "/exit"):
            return
        messages.append({"role": "user", "content": said})
        answer, output = "", None
        for output in _stream(llm, llm.chat_token_ids(messages), params):
            text = output.outputs[0].text
            console.print(escape(text[len(answer) :]), end="")
            answer = text
        messages.append({"role": "assistant", "content": answer})
        if output is not None:
            facts = f"{output.num_cached_tokens} of {len(output.prompt_token_ids)} prompt tokens"
            console.print(f"\n[dim]{facts} came from the cache[/]")


@contextmanager
def _traced(llm: LLM, path: str | None, title: str) -> Iterator[None]:
    """Write what happens meanwhile to `path`: the trace itself, or where it ends in .html a page of it."""
    if path is None:
        yield
        return
    try:
        Path(path).touch()  # better now than after the work
    except OSError as error:
        raise InvalidRequestError(f"trace={path!r} can't be written: {error.strerror}") from error
    lines = StringIO()
    with Trace(llm.engine, lines):
        yield
    if path.endswith(".html"):
        write_page(lines.getvalue(), Path(path), title)
    else:
        Path(path).write_text(lines.getvalue(), encoding="utf-8")
    console.print(f"[dim]What the blocks did is in {escape(path)}[/]", soft_wrap=True)


def _print_answer(name: str, prompt: str, output: RequestOutput) -> None:
    """A prompt, where its tokens came from, and each text that answers it."""
    facts = (
        f"{len(output.prompt_token_ids)} prompt tokens, {output.num_cached_tokens} of them found in the cache"
    )
    console.print(f"\n[bold]{name}[/]  {escape(prompt)}  [dim]{facts}[/]")
    for completion in output.outputs:
        score = "" if completion.score is None else f", score {completion.score:.3f}"
        facts = f"{len(completion.token_ids)} generated, {completion.finish_reason}{score}"
        console.print(f"   {escape(completion.text.strip() or '(no text)')}  [dim]{facts}[/]")


def _token_ids(llm: LLM, prompt: str, args: argparse.Namespace) -> str | list[int]:
    """The prompt as it is, or as a user's message in the model's chat template."""
    if not args.chat and args.system is None:
        return prompt
    system: list[Message] = [{"role": "system", "content": args.system}] if args.system else []
    return llm.chat_token_ids([*system, {"role": "user", "content": prompt}])


def _serve(llm: LLM, prompts: dict[str, str | list[int]], params: Params) -> dict[str, RequestOutput]:
    """Generate for all prompts at once.

    The first one is a step ahead: blocks can be shared once their K and V are written, so the others find
    the prefix that they have in common with it.
    """
    outputs: dict[str, RequestOutput] = {}
    names = list(prompts)
    llm.engine.add_request(names[0], prompts[names[0]], params)
    for name in names[1:]:
        if name == names[1]:
            outputs |= {output.request_id: output for output in llm.engine.step()}
        llm.engine.add_request(name, prompts[name], params)
    while llm.engine.has_unfinished_requests():
        outputs |= {output.request_id: output for output in llm.engine.step()}
    return outputs


def _stream(llm: LLM, token_ids: list[int], params: Params) -> Iterator[RequestOutput]:
    """One request's output as it grows."""
    llm.engine.add_request("chat", token_ids, params)
    while llm.engine.has_unfinished_requests():
        yield from llm.engine.step()


def _name(index: int) -> str:
    """A, B, ..., Z, then A1, B1, ..."""
    return chr(ord("A") + index % 26) + (str(index // 26) if index >= 26 else "")
