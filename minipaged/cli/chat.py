"""`minipaged chat`: a conversation that stays in the cache between turns."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

from typer import Option

from ..errors import InvalidRequestError, ModelNotSupportedError
from ..llm import LLM, Message
from ..sampling_params import Params
from ..terminal import say
from ..terminal.console import DataConsole, plain_console
from .options import EngineOptions, SamplingOptions, check_texts


@dataclass(frozen=True)
class Talk:
    """What to talk about."""

    system: Annotated[str | None, Option(help="a system message")] = None


@dataclass(frozen=True)
class ChatSampling(SamplingOptions):
    """How tokens are chosen, as given here: a model's generation_config.json is not used."""

    max_tokens: Annotated[int, Option(help="at most so many tokens per answer")] = 256


def chat(talk: Talk, engine: EngineOptions, sampling: ChatSampling) -> int:
    """Talk until end of input. The conversation so far stays in the cache between turns.

    A refused turn prints one line and leaves no trace in the conversation. The exit code is then 2.
    """
    params = sampling.params()
    check_texts(system=[talk.system or ""], stop=sampling.stop)
    with engine.engine() as llm:
        return _converse(llm, talk.system, params)


def _converse(llm: LLM, system: str | None, params: Params) -> int:
    """Take turns until end of input, and return the exit code."""
    console = plain_console()
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    llm.chat_token_ids([*messages, {"role": "user", "content": "?"}])  # refused now, or with every message
    console.print("Type a message; an empty line, Ctrl-D or /exit ends the chat.", style="dim")
    exit_code = 0
    while True:
        console.write(("you>", "bold cyan"), " ", end="")
        try:
            text = input().strip()
        except EOFError:
            text = ""
        if text in ("", "/exit"):
            return exit_code
        turn: list[Message] = [*messages, {"role": "user", "content": text}]
        try:
            answer = _answer(console, llm, llm.chat_token_ids(turn), params)
        except (InvalidRequestError, ModelNotSupportedError) as error:
            say(f"minipaged: error: {error}", sys.stderr)
            exit_code = 2
            continue
        messages = [*turn, {"role": "assistant", "content": answer}]


def _answer(console: DataConsole, llm: LLM, token_ids: list[int], params: Params) -> str:
    """Print an answer as it grows, and return it."""
    answer = ""
    llm.engine.add_request("chat", token_ids, params)
    while llm.engine.has_unfinished_requests():
        for output in llm.engine.step():
            text = output.outputs[0].text
            console.write(text[len(answer) :], end="")
            answer = text
    facts = f"{output.num_cached_tokens} of {len(output.prompt_token_ids)} prompt tokens came from the cache"
    console.write((f"\n{facts}", "dim"))
    return answer
