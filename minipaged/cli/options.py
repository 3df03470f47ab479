"""The options that commands share, one dataclass per group, and how a group becomes options of a command.

A command is a function that takes such groups. A field of a group is declared like a parameter of Typer: a
type, a help text and a default.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import MISSING, asdict, dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer import Option
from typer.core import TyperCommand

from ..config import BACKENDS, size_of_text
from ..errors import InvalidRequestError
from ..terminal import say

if TYPE_CHECKING:
    from ..course.learner import Learner
    from ..llm import LLM
    from ..sampling_params import BeamSearchParams, SamplingParams


class GroupedCommand(TyperCommand):
    """A command whose help shows each group of options under the group's own heading."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the groups, in the order in which the command takes them."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                heading = getattr(parameter, "rich_help_panel", None) or "Options"
                groups.setdefault(heading, []).append(record)
        for heading, records in groups.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def app_for(command: Callable[..., int | None] | typer.Typer) -> typer.Typer:
    """Return the app of a command that takes groups of options. An app stays as it is."""
    if isinstance(command, typer.Typer):
        return command
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(cls=GroupedCommand)(_ungrouped(command))
    return app


def _ungrouped(command: Callable[..., int | None]) -> Callable[..., int | None]:
    """Return `command` as a function of all fields of the groups that it takes, which Typer can read."""
    groups = [group for name, group in get_type_hints(command).items() if name != "return"]

    def run(**values: Any) -> int | None:
        filled = (group(**{field.name: values[field.name] for field in fields(group)}) for group in groups)
        return command(*filled)

    parameters = [parameter for group in groups for parameter in _parameters(group)]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def _parameters(group: Any) -> Iterator[inspect.Parameter]:
    """Yield a parameter per field of a group, under the first line of the group's docstring."""
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        kind, info = hints[field.name].__origin__, copy(hints[field.name].__metadata__[0])
        info.rich_help_panel = group.__doc__.partition("\n")[0].rstrip(".")
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        yield inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]
        )


@dataclass(frozen=True)
class EngineOptions:
    """The engine's settings, under vLLM's names."""

    model: Annotated[str, Option(help="a Hugging Face id or a folder")] = "smollm2-135m"
    dtype: Annotated[str, Option(help="auto, float32, float64, float16 or bfloat16")] = "auto"
    device: Annotated[str, Option(help="auto, cpu, cuda or cuda:1")] = "auto"
    fuse_modules: Annotated[bool, Option(help="fewer, larger operations on a CPU (Llama family)")] = False
    pack_weights: Annotated[
        bool | None,
        Option("--pack-weights/--no-pack-weights", help="lay out weights for a CPU's products (16 bits: on)"),
    ] = None
    attention_backend: Annotated[str, Option(help=", ".join(BACKENDS))] = "auto"
    block_size: Annotated[int, Option(help="tokens per block")] = 16
    num_blocks: Annotated[int | None, Option(help="blocks in the pool")] = None
    kv_cache_memory: Annotated[str | None, Option(help='size of the pool, such as "512MiB"')] = None
    max_model_len: Annotated[int | None, Option(help="limit of prompt + output")] = None
    max_num_seqs: Annotated[int, Option(help="sequences per step")] = 64
    max_num_batched_tokens: Annotated[int, Option(help="tokens per step")] = 2048
    swap_space: Annotated[str | None, Option(help='preempt to host memory, such as "1GiB"')] = None
    no_prefix_caching: Annotated[bool, Option("--no-prefix-caching", help="compute whole prompts")] = False
    seed: Annotated[int, Option(help="seed of requests that bring none")] = 0
    use: Annotated[
        list[str] | None,
        Option(help="serve with the parts that this file defines; may be given several times"),
    ] = None

    @contextmanager
    def engine(self) -> Iterator[LLM]:
        """Load the model, and a learner's parts if --use names them. Their mistakes become LearnerErrors."""
        if not self.use:
            yield make_llm(self)
            return
        from ..course.learner import Learner

        learner = Learner.load(self.use)
        say("\n".join(learner.notes))
        with learner.guard():
            yield make_llm(self, learner)


def make_llm(options: EngineOptions, learner: Learner | None = None) -> LLM:
    """Load torch and the model, and return the engine that the options describe.

    learner: serve with this learner's parts, with every check on.
    """
    from ..llm import LLM

    settings = asdict(options)
    del settings["use"]
    no_prefix_caching, swap_space = settings.pop("no_prefix_caching"), settings.pop("swap_space")
    if learner is not None:
        settings |= {"parts": learner.parts, "block_manager_class": learner.block_manager_class}
    return LLM(
        **settings,
        enable_prefix_caching=not no_prefix_caching and (learner is None or learner.can_cache),
        preemption_mode="recompute" if swap_space is None else "swap",
        swap_space=swap_space or 0,
        check_invariants=learner is not None,
    )


@dataclass(frozen=True)
class SamplingOptions:
    """How tokens are chosen, as given here: a model's generation_config.json is not used."""

    max_tokens: Annotated[int, Option(help="at most so many tokens per answer")] = 64
    temperature: Annotated[float, Option(help="0 is greedy")] = 0.0
    top_p: Annotated[float, Option(help="keep the likeliest up to this probability")] = 1.0
    top_k: Annotated[int, Option(help="keep so many of the likeliest; 0 keeps all")] = 0
    stop: Annotated[list[str] | None, Option(help="end at this text; may be given several times")] = None
    ignore_eos: Annotated[bool, Option("--ignore-eos", help="go on to --max-tokens")] = False
    sampling_seed: Annotated[int | None, Option(help="seed of the first answer")] = None

    def params(self, n: int = 1, beam_width: int | None = None) -> SamplingParams | BeamSearchParams:
        """Return the parameters of the sampler, or of a beam search."""
        from ..sampling_params import BeamSearchParams, SamplingParams

        if beam_width is None:
            values = asdict(self)
            return SamplingParams(n=n, seed=values.pop("sampling_seed"), **values)
        others = [field for field in fields(self) if field.name not in ("max_tokens", "ignore_eos")]
        changed = ["n"] if n != 1 else []
        changed += [field.name for field in others if getattr(self, field.name) != field.default]
        if changed:
            names = ", ".join(name.replace("_", "-") for name in changed)
            raise InvalidRequestError(f"beam-width can't be combined with {names}")
        return BeamSearchParams(beam_width=beam_width, max_tokens=self.max_tokens, ignore_eos=self.ignore_eos)


def check_texts(**texts_by_name: list[str] | None) -> None:
    """Refuse texts from the command line whose bytes are no valid text, before a model is loaded."""
    for name, texts in texts_by_name.items():
        for text in texts or []:
            size_of_text(name, text)
