"""The command line: generate, chat, simulate, the benches of a clone, the lessons and doctor.

Where there is no GPU it lets Triton interpret and Numba simulate, before anything imports them. Every error
of ours is one line on standard error and exit code 2.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from . import __version__
from .commands.arguments import (
    add_engine_arguments,
    add_sampling_arguments,
    add_simulate_arguments,
)
from .errors import InvalidRequestError, MinipagedError
from .machine import interpret_kernels_without_gpu
from .terminal import prepare_streams, say, shown

if TYPE_CHECKING:
    from .course.learner import Learner
    from .llm import LLM
    from .sampling_params import BeamSearchParams, SamplingParams


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 2 for bad input, 130 interrupted, 141 cut off."""
    prepare_streams()
    parser = _parser()
    args, others = parser.parse_known_args(argv)
    if args.run is _bench:
        args.arguments = others  # each bench knows its own
    elif others:
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    interpret_kernels_without_gpu()
    try:
        return args.run(args) or 0
    except MinipagedError as error:
        say(f"minipaged: error: {error}", sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read our output has seen enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nor may the last flush fail
        return 141


def make_llm(args: argparse.Namespace, learner: Learner | None = None) -> LLM:
    """The engine that the command line asks for. Loads torch and the model.

    learner: whose parts serve, with every check on.
    """
    from .llm import LLM

    own: dict[str, Any] = {}
    if learner is not None:
        own = {"parts": learner.parts, "block_manager_class": learner.block_manager_class}
    return LLM(
        args.model,
        dtype=args.dtype,
        device=args.device,
        attention_backend=args.attention_backend,
        block_size=args.block_size,
        num_blocks=args.num_blocks,
        kv_cache_memory=args.kv_cache_memory,
        max_model_len=args.max_model_len,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        enable_prefix_caching=not args.no_prefix_caching and (learner is None or learner.can_cache),
        preemption_mode="recompute" if args.swap_space is None else "swap",
        swap_space=args.swap_space or 0,
        check_invariants=learner is not None,
        seed=args.seed,
        **own,
    )


def make_params(args: argparse.Namespace) -> SamplingParams | BeamSearchParams:
    """What the command line asks of the sampler, or of a beam search."""
    from .sampling_params import BeamSearchParams, SamplingParams

    if args.beam_width is not None:
        plain = {"n": 1, "temperature": 0.0, "top_p": 1.0, "top_k": 0, "stop": None, "sampling_seed": None}
        if other := [name for name, value in plain.items() if getattr(args, name) != value]:
            names = ", ".join(name.replace("_", "-") for name in other)
            raise InvalidRequestError(f"beam-width can't be combined with {names}")
        return BeamSearchParams(
            beam_width=args.beam_width, max_tokens=args.max_tokens, ignore_eos=args.ignore_eos
        )
    return SamplingParams(
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k,
        max_tokens=args.max_tokens,
        n=args.n,
        stop=args.stop,
        ignore_eos=args.ignore_eos,
        seed=args.sampling_seed,
    )


def _generate(args: argparse.Namespace) -> None:
    from .commands.generate import generate

    _serve(args, generate)


def _chat(args: argparse.Namespace) -> int | None:
    from .commands.generate import chat

    return _serve(args, chat)


def _serve(args: argparse.Namespace, command: Callable[..., int | None]) -> int | None:
    """Run a command on an engine, whose parts may be a learner's, and return its exit code."""
    params = make_params(args)
    if not args.use:
        return command(args, params, lambda: make_llm(args))
    from .course.learner import Learner

    learner = Learner.load(args.use)
    say("\n".join(learner.notes))
    with learner.guard():
        return command(args, params, lambda: make_llm(args, learner))


def _bench(args: argparse.Namespace) -> int:
    from .commands.bench import bench

    return bench(args.arguments)


def _simulate(args: argparse.Namespace) -> None:
    from .commands.simulate import simulate

    simulate(args)


def _lessons(args: argparse.Namespace) -> int:
    from .commands.lessons import lessons

    return lessons(args)


def _doctor(args: argparse.Namespace) -> None:
    from .commands.doctor import doctor

    doctor()


class _Parser(argparse.ArgumentParser):
    """Its complaints quote what was typed."""

    def error(self, message: str) -> NoReturn:
        super().error(shown(message, sys.stderr))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="minipaged", description="PagedAttention you can run.")
    parser.add_argument("--version", action="version", version=f"minipaged {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = _command(commands, "generate", _generate, "generate text for one or more prompts")
    command.add_argument("prompts", nargs="+", metavar="PROMPT")
    command.add_argument("--chat", action="store_true", help="treat each prompt as a user's message")
    command.add_argument("--system", help="a system message that all prompts share (implies --chat)")
    command.add_argument("--show-blocks", action="store_true", help="draw the block tables and the pool")
    command.add_argument(
        "--trace", metavar="FILE", help="write what the blocks did: FILE.html to look at, FILE.jsonl to read"
    )
    command.add_argument(
        "-n", type=int, default=1, metavar="N", help="samples of each prompt, which share it"
    )
    command.add_argument(
        "--beam-width", type=int, metavar="K", help="search with K beams instead of sampling"
    )
    add_engine_arguments(command)
    add_sampling_arguments(command)
    command = _command(commands, "chat", _chat, "talk to the model; each turn reuses the blocks of the last")
    command.add_argument("--system", help="a system message")
    add_engine_arguments(command)
    add_sampling_arguments(command, max_tokens=256)
    command.set_defaults(n=1, beam_width=None)
    text = "measure, from a clone: against Hugging Face, or `bench NAME`; see bench --help"
    _command(commands, "bench", _bench, text, add_help=False)
    command = _command(commands, "simulate", _simulate, "plan a server: what fits, what rate, which settings")
    add_simulate_arguments(command)
    command = _command(commands, "lessons", _lessons, "show how far you are; hint, reset, watch, copy")
    command.set_defaults(action=None)
    actions = command.add_subparsers(metavar="ACTION", dest="action")
    for action, text in (
        ("hint", "show the next hint of a lesson"),
        ("reset", "make a lesson's exercise anew; yours is kept beside it"),
        ("watch", "grade on every save, one lesson or all"),
    ):
        sub = actions.add_parser(action, help=text, description=text[0].upper() + text[1:] + ".")
        sub.add_argument("lesson", nargs="?" if action == "watch" else None, help="such as 3 or allocator")
    text = "copy the lessons to a new folder of your own"
    sub = actions.add_parser("copy", help=text, description=text[0].upper() + text[1:] + ".")
    sub.add_argument("folder", metavar="DIR")
    _command(commands, "doctor", _doctor, "tell what this machine can run")
    return parser


def _command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int | None], text: str, **options: Any
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", **options)
    command.set_defaults(run=run)
    return command
