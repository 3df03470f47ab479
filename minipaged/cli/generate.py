"""`minipaged generate`: answer one or more prompts, and show what the blocks did meanwhile."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from ..errors import InvalidRequestError
from ..llm import LLM, Message
from ..outputs import RequestOutput
from ..sampling_params import Params
from ..terminal.console import DataConsole, plain_console
from ..terminal.results import output_file, unwritable
from ..view.page import write_page
from ..view.terminal_view import draw_blocks, print_summary
from ..view.trace import Trace
from .options import EngineOptions, SamplingOptions, check_texts


@dataclass(frozen=True)
class Task:
    """What to answer, and what to show of it."""

    prompts: Annotated[list[str], Argument(help="texts to go on from, or to answer", metavar="PROMPT")]
    chat: Annotated[bool, Option("--chat", help="treat each prompt as a user's message")] = False
    system: Annotated[str | None, Option(help="a system message for all prompts (implies --chat)")] = None
    show_blocks: Annotated[bool, Option("--show-blocks", help="draw the block tables and the pool")] = False
    trace: Annotated[
        str | None, Option(help="write what the blocks did: .html to look at, .jsonl to read")
    ] = None
    n: Annotated[int, Option("-n", help="samples of each prompt, which share it")] = 1
    beam_width: Annotated[int | None, Option(help="search with so many beams")] = None


def generate(task: Task, engine: EngineOptions, sampling: SamplingOptions) -> None:
    """Generate for all prompts and print the texts; with --show-blocks, what the pool looked like."""
    params = sampling.params(task.n, task.beam_width)
    if "" in task.prompts:
        raise InvalidRequestError("prompt is empty: at least one token is needed")
    check_texts(prompt=task.prompts, system=[task.system or ""], stop=sampling.stop)
    trace = None if task.trace is None else output_file(task.trace, "trace")
    with engine.engine() as llm:
        lines = _answer(llm, task, params)
    if trace is not None:
        _write_trace(lines, trace, " · ".join(task.prompts))
        plain_console().write((f"What the blocks did is in {trace}", "dim"))


def _answer(llm: LLM, task: Task, params: Params) -> str:
    """Generate and print the answers. Return the trace, or "" if no option needs it."""
    prompts = [_token_ids(llm, prompt, task) for prompt in task.prompts]
    names = [_name(i) for i in range(len(prompts))]
    lines, console = StringIO(), plain_console()
    start = time.perf_counter()
    with ExitStack() as watching:
        if task.trace is not None or task.show_blocks:
            watching.enter_context(Trace(llm.engine, lines))
        outputs = _serve(llm, dict(zip(names, prompts, strict=True)), params)
    seconds = time.perf_counter() - start
    if task.show_blocks:
        draw_blocks(console, lines.getvalue(), dict(zip(names, task.prompts, strict=True)))
    for name, prompt in zip(names, task.prompts, strict=True):
        _print_answer(console, name, prompt, outputs[name])
    print_summary(console, llm, seconds)
    return lines.getvalue()


def _write_trace(lines: str, path: Path, title: str) -> None:
    """Write a trace, or a page of it if the name ends in .html. Raises InvalidConfigError."""
    try:
        if path.suffix == ".html":
            write_page(lines, path, title)
        else:
            path.write_text(lines, encoding="utf-8")
    except OSError as error:
        raise unwritable("trace", path, error) from error


def _print_answer(console: DataConsole, name: str, prompt: str, output: RequestOutput) -> None:
    """Print a prompt, how many of its tokens were cached, and each text that answers it."""
    num_tokens = len(output.prompt_token_ids)
    facts = f"{num_tokens} prompt tokens, {output.num_cached_tokens} of them found in the cache"
    console.write("\n", (name, "bold"), f"  {prompt}  ", (facts, "dim"))
    for completion in output.outputs:
        score = "" if completion.score is None else f", score {completion.score:.3f}"
        facts = f"{len(completion.token_ids)} generated, {completion.finish_reason}{score}"
        text = completion.text if completion.text.strip() else "(no text)"
        console.write(f"   {text}  ", (facts, "dim"))


def _token_ids(llm: LLM, prompt: str, task: Task) -> str | list[int]:
    """Return the prompt as it is, or as a user's message in the model's chat template."""
    if not task.chat and task.system is None:
        return prompt
    system: list[Message] = [{"role": "system", "content": task.system}] if task.system else []
    return llm.chat_token_ids([*system, {"role": "user", "content": prompt}])


def _serve(llm: LLM, prompts: dict[str, str | list[int]], params: Params) -> dict[str, RequestOutput]:
    """Generate for all prompts at once.

    The first one is a step ahead. Its blocks can be shared once their K and V are written, so the others
    find the prefix that they have in common with it.
    """
    outputs: dict[str, RequestOutput] = {}
    for number, (name, prompt) in enumerate(prompts.items()):
        if number == 1:
            outputs |= {output.request_id: output for output in llm.engine.step()}
        llm.engine.add_request(name, prompt, params)
    while llm.engine.has_unfinished_requests():
        outputs |= {output.request_id: output for output in llm.engine.step()}
    return outputs


def _name(index: int) -> str:
    """Return A, B, ..., Z, then A1, B1, ..."""
    return chr(ord("A") + index % 26) + (str(index // 26) if index >= 26 else "")
