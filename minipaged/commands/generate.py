"""`minipaged generate` and `minipaged chat`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from io import StringIO
from pathlib import Path

from ..errors import InvalidRequestError, ModelNotSupportedError
from ..llm import LLM, Message
from ..outputs import RequestOutput
from ..sampling_params import BeamSearchParams, SamplingParams
from ..terminal import say
from ..view.page import write_page
from ..view.terminal_view import draw_blocks, print_summary
from ..view.trace import Trace
from .console import DataConsole

Params = SamplingParams | BeamSearchParams


def generate(args: argparse.Namespace, params: Params, make_llm: Callable[[], LLM]) -> None:
    """Generate for all prompts and print the texts; with --show-blocks, what the pool looked like."""
    if "" in args.prompts:
        raise InvalidRequestError("prompt is empty: at least one token is needed")
    _check_texts(args, prompt=args.prompts)
    llm, console = make_llm(), _console()
    prompts = [_token_ids(llm, prompt, args) for prompt in args.prompts]
    names = [_name(i) for i in range(len(prompts))]
    start = time.perf_counter()
    with _traced(llm, args) as trace:
        outputs = _serve(llm, dict(zip(names, prompts, strict=True)), params)
    seconds = time.perf_counter() - start
    if args.trace is not None:
        console.write((f"What the blocks did is in {args.trace}", "dim"))
    if args.show_blocks:
        draw_blocks(console, trace.getvalue(), dict(zip(names, args.prompts, strict=True)))
    for name, prompt in zip(names, args.prompts, strict=True):
        _print_answer(console, name, prompt, outputs[name])
    print_summary(console, llm, seconds)


def chat(args: argparse.Namespace, params: Params, make_llm: Callable[[], LLM]) -> int:
    """Talk until end of input. The conversation so far stays in the cache between turns.

    A turn that is refused is told in one line and leaves no trace in the conversation. Returns the exit code:
    2 where that happened.
    """
    _check_texts(args)
    llm, console = make_llm(), _console()
    messages: list[Message] = [{"role": "system", "content": args.system}] if args.system else []
    llm.chat_token_ids([*messages, {"role": "user", "content": "?"}])  # refused now, or with every message
    console.print("Type a message; an empty line, Ctrl-D or /exit ends the chat.", style="dim")
    exit_code = 0
    while True:
        console.write(("you>", "bold cyan"), " ", end="")
        try:
            said = input().strip()
        except EOFError:
            said = ""
        if said in ("", "/exit"):
            return exit_code
        asked: list[Message] = [*messages, {"role": "user", "content": said}]
        try:
            answer = _answer(console, llm, llm.chat_token_ids(asked), params)
        except (InvalidRequestError, ModelNotSupportedError) as error:
            say(f"minipaged: error: {error}", sys.stderr)
            exit_code = 2
            continue
        messages = [*asked, {"role": "assistant", "content": answer}]


def _answer(console: DataConsole, llm: LLM, token_ids: list[int], params: Params) -> str:
    """Print an answer as it grows, and return it."""
    answer = ""
    for output in _stream(llm, token_ids, params):
        text = output.outputs[0].text
        console.write(text[len(answer) :], end="")
        answer = text
    facts = f"{output.num_cached_tokens} of {len(output.prompt_token_ids)} prompt tokens came from the cache"
    console.write((f"\n{facts}", "dim"))
    return answer


def _console() -> DataConsole:
    """In a pipe, lines break only where their text does."""
    return DataConsole(soft_wrap=not sys.stdout.isatty())


def _check_texts(args: argparse.Namespace, prompt: Sequence[str] = ()) -> None:
    """Refuse texts from the command line whose bytes are no text, before a model is loaded."""
    given = {"prompt": prompt, "system": [args.system or ""], "stop": args.stop or []}
    for name, texts in given.items():
        for text in texts:
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise InvalidRequestError(f"{name} is no valid text: {error}") from None


@contextmanager
def _traced(llm: LLM, args: argparse.Namespace) -> Iterator[StringIO]:
    """Record what happens meanwhile, if --show-blocks or --trace asks for it, and write it to the latter's
    file: the trace itself, or a page of it where the name ends in .html."""
    lines, path = StringIO(), args.trace
    try:
        if path is not None:
            Path(path).touch()  # better now than after the work
    except OSError as error:
        raise InvalidRequestError(f"trace={path!r} can't be written: {error.strerror}") from error
    with Trace(llm.engine, lines) if path is not None or args.show_blocks else nullcontext():
        yield lines
    if path is None:
        return
    if path.endswith(".html"):
        write_page(lines.getvalue(), Path(path), " · ".join(args.prompts))
    else:
        Path(path).write_text(lines.getvalue(), encoding="utf-8")


def _print_answer(console: DataConsole, name: str, prompt: str, output: RequestOutput) -> None:
    """A prompt, where its tokens came from, and each text that answers it."""
    facts = (
        f"{len(output.prompt_token_ids)} prompt tokens, {output.num_cached_tokens} of them found in the cache"
    )
    console.write("\n", (name, "bold"), f"  {prompt}  ", (facts, "dim"))
    for completion in output.outputs:
        score = "" if completion.score is None else f", score {completion.score:.3f}"
        facts = f"{len(completion.token_ids)} generated, {completion.finish_reason}{score}"
        text = completion.text if completion.text.strip() else "(no text)"
        console.write(f"   {text}  ", (facts, "dim"))


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
