"""`minipaged bench`: run the benches in `benchmarks/` of a clone, which are not installed."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import typer

from ..errors import MinipagedError

CLONE = Path(__file__).resolve().parents[2]
# Each bench knows its own options, --help among them.
UNREAD = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
bench = typer.Typer(add_completion=False, rich_markup_mode=None)


@bench.command(context_settings=UNREAD, add_help_option=False)
def run(context: typer.Context) -> int:
    """Run the bench that the arguments name, with its options. Raises MinipagedError without a clone."""
    load_benchmarks()
    return import_module("benchmarks.command_line").main(context.args)


def load_benchmarks() -> None:
    """Make the clone's folder the package `benchmarks`. Raises MinipagedError without a clone.

    The clone itself stays out of sys.path: its `kernels` would be found there in place of a distribution.
    """
    if "benchmarks" in sys.modules:
        return
    folder = CLONE / "benchmarks"
    if not ((CLONE / "pyproject.toml").is_file() and (folder / "command_line.py").is_file()):
        raise MinipagedError(
            "bench runs from a clone of minipaged's repository, and this installation has none beside it: "
            "in a clone, `make bench`, or `pip install -e .` and this command again"
        )
    spec = spec_from_file_location("benchmarks", folder / "__init__.py")
    assert spec is not None and spec.loader is not None
    package = module_from_spec(spec)
    sys.modules["benchmarks"] = package
    spec.loader.exec_module(package)
