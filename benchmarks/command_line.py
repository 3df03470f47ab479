"""`minipaged bench [NAME]`: which bench is asked for, and its options."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from minipaged.errors import InvalidConfigError

from . import BENCHES, DEFAULT


def main(arguments: Sequence[str]) -> int:
    """Run the bench that comes first in the arguments, or without one the default. Returns the exit code.

    Raises MinipagedError for what can't be measured.
    """
    name, options = DEFAULT, list(arguments)
    if options and not options[0].startswith("-"):
        name, options = options[0], options[1:]
    if name not in BENCHES:
        raise InvalidConfigError(f"bench must be one of {', '.join(BENCHES)}, got {name!r}")
    module, text = BENCHES[name]
    bench = import_module(f"{__package__}.{module}")
    parser = _Parser(
        prog=f"minipaged bench {name}",
        description=f"{text[0].upper()}{text[1:]}.",
        epilog=_list_of_benches(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    bench.add_arguments(parser)
    bench.run(parser.parse_args(options))
    return 0


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are ours, in one line."""

    def error(self, message: str) -> NoReturn:
        raise InvalidConfigError(message)


def _list_of_benches() -> str:
    """Return the list of benches for the help."""
    lines = [f"  minipaged bench {name:<13} {text}" for name, (_, text) in BENCHES.items()]
    return "\n".join([f"All benches, each with options of its own (without a name, {DEFAULT}):", *lines])
