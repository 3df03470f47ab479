"""The command line: generate, chat, simulate, the benches of a clone, the lessons and doctor.

Without a GPU it lets Triton interpret and Numba simulate, before anything imports them. Every error of ours
is one line on standard error and exit code 2.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from .. import __version__
from ..errors import MinipagedError
from ..terminal import prepare_streams, say
from .machine import interpret_kernels_without_gpu


class Command(NamedTuple):
    """The module of a command, and its line in the list of commands."""

    module: str  # which has a function of the command's name, or a Typer app where there are subcommands
    text: str


COMMANDS = {
    "generate": Command("cli.generate", "generate text for one or more prompts"),
    "chat": Command("cli.chat", "talk to the model; each turn reuses the blocks of the last"),
    "bench": Command(
        "cli.bench", "measure, from a clone: against Hugging Face, or `bench NAME`; see bench --help"
    ),
    "simulate": Command("simulator.command", "plan a server: what fits, what rate, which settings"),
    "lessons": Command("course.command", "show how far you are; hint, reset, watch, copy"),
    "doctor": Command("cli.doctor", "tell what this machine can run"),
}


class LazyGroup(TyperGroup):
    """Imports a command's module when the command is called, and none for the list of commands."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, name: str) -> Any:
        """Return the command of that name, or None."""
        if name not in COMMANDS:
            return None
        from .options import app_for

        module, text = COMMANDS[name]
        command = typer.main.get_command(app_for(getattr(import_module(f"minipaged.{module}"), name)))
        command.help = f"{text[0].upper()}{text[1:]}."
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def print_version(is_requested: bool) -> None:
    """Print the version and end, if --version is given."""
    if is_requested:
        say(f"minipaged {__version__}")
        raise typer.Exit


app = typer.Typer(
    cls=LazyGroup, add_completion=False, rich_markup_mode=None, help="PagedAttention you can run."
)


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="show the version")
    ] = False,
) -> None:
    """Take the options before the name of a command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 2 for bad input, 130 interrupted, 141 cut off."""
    prepare_streams()
    group = typer.main.get_command(app)
    words = sys.argv[1:] if arguments is None else arguments
    try:
        with group.make_context("minipaged", list(words)) as context:
            interpret_kernels_without_gpu()
            code = group.invoke(context) or 0
        sys.stdout.flush()  # a disk that is full may only tell now
        return code
    except typer.Exit as end:
        return end.exit_code
    except (typer.TyperException, MinipagedError) as error:
        return _refuse(_message(error))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has ended, as `head` does
        _discard_output()
        return 141
    except (OSError, MemoryError) as error:  # the output can't be written, for one
        _discard_output()
        return _refuse(str(error) or "there is not enough memory")


def _refuse(message: str) -> int:
    """Print what is wrong, in one line, and return the exit code."""
    line = message.replace("\n", "\\n").replace("\r", "\\r")
    with suppress(OSError):  # a standard error that can't be written either
        say(f"minipaged: error: {line}", sys.stderr)
    return 2


def _message(error: Exception) -> str:
    """Return what is wrong, with the given value: Typer names the option alone."""
    if not isinstance(error, typer.TyperException):
        return str(error)
    message = error.format_message()
    if isinstance(error, typer.BadParameter) and (find := getattr(error.__cause__, "errors", None)):
        message = f"{message}, got {find()[0]['input']!r}"
    return message


def _discard_output() -> None:
    """Drop what is still buffered, so that it can't fail once more when the process ends."""
    with suppress(OSError, ValueError):  # standard output is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
